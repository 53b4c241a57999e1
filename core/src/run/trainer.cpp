// Runs the steps of a training run on the ranks that are here and collects the reports of all,
// until the steps are done, someone stops it or a rank fails.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "meshwright/engine/host.h"
#include "meshwright/engine/pack.h"
#include "meshwright/engine/ranks.h"
#include "run/executor.h"
#include "run/meeting.h"
#include "run/rank_report.h"

namespace mw {
namespace {

// What a rank tells the first rank of this process about a step. `met`: when it saw that all ranks
// had met for the step's totals; zero where all ranks run at a time.
struct RankStepReport {
  RankReport report;
  Moment met;
  // as functions of the script or a plugin returned them on the rank
  double lr = 0, loss_scale = 0;
};

// Throws Error (run) if a rank took another learning rate or loss scale than rank 0: it is no
// replica.
void refuse_if_apart(const StepReport& first, double lr, double loss_scale,
                     const std::string& where) {
  const auto compare = [&](const char* key, const char* what, double one, double two) {
    if (one == two || (std::isnan(one) && std::isnan(two))) return;
    throw Error(Stage::run, "process.apart", key,
                fmt::format("{}: {} of step {} is {} on rank 0 and {} {}", key, what, first.step,
                            one, two, where),
                "let it follow from the step alone: no time of day, no random numbers, no state "
                "that differs between processes");
  };
  compare("schedule", "the learning rate", first.lr, lr);
  compare("loss_scale", "the loss scale", first.loss_scale, loss_scale);
}

// Moves the outcome's times, which may be long where the step is traced, and clears the ledger's
// books of the step.
RankReport report_of(Executor& executor, Ledger& ledger, StepOutcome& outcome,
                     const RankRuntime& runtime) {
  RankReport report;
  report.rank = executor.rank();
  for (int c = 0; c < category_count; ++c)
    report.memory[c] = ledger.memory(static_cast<Category>(c));
  report.peak_bytes = ledger.peak_bytes();
  report.peak_without_scratch = ledger.peak_without_scratch();
  report.communication = ledger.communication();
  report.work = ledger.work();
  report.rows = ledger.rows();
  report.rows_share = ledger.rows_share();
  report.chosen = executor.expert_loads();
  report.began = runtime.shared_clock(outcome.began);
  report.runs = outcome.runs;
  report.instructions = std::move(outcome.instructions);
  report.moments = std::move(outcome.moments);
  ledger.clear_step();
  return report;
}

// The seconds that observers take on a rank's thread, for accounts of steps.
struct ObserverTimes {
  struct Spent {
    double since_step = 0;
    double apart = 0;  // in the whole run, but in no step's time
  };
  std::vector<Spent> by_observer;
  double began = seconds_now();
  std::int64_t steps = 0;

  // The time of another step begins at `now`. If `apart`, what observers took since the last call
  // is in no step's.
  void start(bool apart, double now) {
    for (Spent& spent : by_observer) {
      if (apart) spent.apart += spent.since_step;
      spent.since_step = 0;
    }
    began = now;
  }
};

class Run {
 public:
  Run(const RunSetup& setup, std::span<RunObserver* const> observers, const std::atomic<bool>* stop)
      : setup_(setup),
        observers_(observers),
        stop_(stop),
        runtime_(runtime_of(setup, *setup.plan)),
        reports_(runtime_.here().size()) {}

  TrainOutcome run() try {
    with_ranks(
        runtime_, setup_, *setup_.plan, stop_,
        [this](RankRun& rank, Ledger& ledger) { train_on(static_cast<Executor&>(rank), ledger); },
        true);
    return outcome_;
  } catch (const RankFailed& error) {
    std::vector<Problem> problems = error.problems();
    for (RunObserver* observer : observers_) {
      try {
        observer->failed(error);
      } catch (const Error& own) {
        problems.insert(problems.end(), own.problems().begin(), own.problems().end());
      } catch (const std::exception& own) {
        problems.push_back(problem_of(own));
      }
    }
    throw RankFailed(error.rank(), std::move(problems), error.places());
  }

 private:
  void train_on(Executor& executor, Ledger& ledger) try {
    for (RunObserver* observer : observers_) observer->begin(executor);
    if (executor.rank() == 0) outcome_.steps = setup_.first_step;
    ledger.reset_peaks();
    Clocks clocks;
    ObserverTimes beside{std::vector<ObserverTimes::Spent>(observers_.size())};
    for (std::int64_t step = setup_.first_step; step < setup_.steps; ++step) {
      const double began = seconds_now();
      StepOutcome done = executor.step(step, setup_.schedule(step));
      const double took = seconds_now() - began;
      const bool traced = !done.instructions.empty();
      RankReport own = report_of(executor, ledger, done, runtime_);
      const double handed = seconds_now();
      if (traced && setup_.account) own.account = account(beside, done, took, handed);
      std::vector<RankStepReport> all = reports_.gather(
          place_of(executor), {std::move(own), executor.met(), done.lr, done.loss_scale});
      const bool left_out = done.update_left_out && !done.not_finite;
      constexpr double no_loss = std::numeric_limits<double>::quiet_NaN();
      const auto shared =
          std::make_shared<StepReport>(StepReport{step,
                                                  0,
                                                  0,
                                                  done.labels > 0 ? done.loss : no_loss,
                                                  done.grad_norm,
                                                  done.lr,
                                                  done.loss_scale,
                                                  left_out,
                                                  setup_.plan_at(step).tokens_per_step(),
                                                  done.labels,
                                                  {}});
      StepReport& report = *shared;
      const bool stop = done.stop || done.not_finite;
      StepEnd end{done, step, stop || step + 1 == setup_.steps};
      if (place_of(executor) == 0) {
        Moment met;  // when the first rank saw that all had met
        for (RankStepReport& told : all) {
          if (met.wall == 0 || told.met.wall < met.wall) met = told.met;
          refuse_if_apart(report, told.lr, told.loss_scale,
                          fmt::format("on rank {}", told.report.rank));
          report.ranks.push_back(std::move(told.report));
        }
        clocks.read(report, met);
        add_gathered(report, clocks.read_at.wall - handed);
        collect(executor.rank(), report);
        outcome_.steps = step + 1;
        outcome_.interrupted = stop && step + 1 < setup_.steps;
        if (executor.rank() == 0) end.report = shared;
      }
      beside.start(false, place_of(executor) == 0 ? clocks.read_at.wall : seconds_now());
      ++beside.steps;
      end.apart = traced;
      observe(executor, end, stop, beside);
      if (end.stopped && place_of(executor) == 0) outcome_.interrupted = step + 1 < setup_.steps;
      if (end.apart) beside.start(true, clocks.leave_out());
      if (end.last) break;
    }
    for (RunObserver* observer : observers_) observer->finish(executor);
  } catch (...) {
    reports_.fail(place_of(executor));
    throw;
  }

  // Times from one step's end to the next one's, of the first rank that is here. Where ranks run in
  // turns, one of them may have computed most of the next step before another has ended this one.
  // A step's time then goes from one meeting of all ranks for the totals to the next, between which
  // each does as much as in a step: the update of the one, and what the other computes before it.
  struct Clocks {
    Moment since = now(), read_at = since;
    static Moment now() { return {seconds_now(), cpu_seconds_now()}; }
    void read(StepReport& report, const Moment& met) {
      read_at = now();
      const Moment end = met.wall > 0 ? met : read_at;
      report.seconds = end.wall - since.wall;
      report.cpu_seconds = end.cpu - since.cpu;
      since = end;
    }
    // Leaves the time since the last read() out of all steps. Returns when it ended.
    double leave_out() {
      const Moment end = now();
      since.wall += end.wall - read_at.wall;
      since.cpu += end.cpu - read_at.cpu;
      return end.wall;
    }
  };

  void observe(Executor& executor, StepEnd& end, bool stop, ObserverTimes& beside) {
    for (std::size_t o = 0; o < observers_.size(); ++o) {
      const double began = seconds_now();
      const bool before = end.apart, ended = end.last;
      end.apart = false;
      observers_[o]->step(executor, end);
      if (end.last && !ended && !end.stopped && executor.rank() == 0)
        outcome_.ended_by = observers_[o]->name();
      if (observers_[o]->decides() && !stop) {  // rank 0 has said it, and all ranks hear it
        end.last = unpack<bool>(runtime_.broadcast(executor.rank(), pack(end.last)));
        end.apart = true;
      }
      ObserverTimes::Spent& spent = beside.by_observer[o];
      (end.apart ? spent.apart : spent.since_step) += seconds_now() - began;
      end.apart = end.apart || before;
    }
  }

  StepAccount account(const ObserverTimes& beside, const StepOutcome& outcome, double step,
                      double now) const {
    StepAccount account{now - beside.began, step, outcome.watched, outcome.tracing, 0, {}};
    for (std::size_t o = 0; o < observers_.size(); ++o) {
      const auto [since_step, apart] = beside.by_observer[o];
      const auto add = [&](double seconds, bool is_apart) {
        account.observed.push_back({observers_[o]->name(), seconds, is_apart});
      };
      if (since_step > 0) add(since_step, false);
      if (apart > 0 && beside.steps > 0) add(apart / static_cast<double>(beside.steps), true);
    }
    return account;
  }

  // Adds the seconds for which the first rank waited for the others' reports to its own account.
  static void add_gathered(StepReport& report, double seconds) {
    StepAccount& account = report.ranks.front().account;
    if (account.seconds == 0) return;
    account.gathered = seconds;
    account.seconds += account.gathered;
  }

  // The rank's index among the ranks of this process.
  std::size_t place_of(const Executor& executor) const {
    return static_cast<std::size_t>(executor.rank() - runtime_.here().front());
  }

  // Brings the reports of all processes to rank 0.
  void collect(int rank, StepReport& report) {
    if (runtime_.alone()) return;
    std::string own;
    if (rank != 0) own = pack(report);
    const std::vector<std::string> all = runtime_.gather_processes(std::move(own));
    for (std::size_t p = 1; p < all.size(); ++p) {
      StepReport other = unpack<StepReport>(all[p]);
      refuse_if_apart(report, other.lr, other.loss_scale, fmt::format("in process {}", p));
      report.cpu_seconds += other.cpu_seconds;
      for (RankReport& each : other.ranks) report.ranks.push_back(std::move(each));
    }
  }

  const RunSetup& setup_;
  const std::span<RunObserver* const> observers_;
  const std::atomic<bool>* stop_;
  RankRuntime runtime_;
  Meeting<RankStepReport> reports_;
  TrainOutcome outcome_;  // as the first rank of this process knows it
};

}  // namespace

TrainOutcome train(const RunSetup& setup, std::span<RunObserver* const> observers,
                   const std::atomic<bool>* stop) {
  return Run(setup, observers, stop).run();
}

}  // namespace mw
