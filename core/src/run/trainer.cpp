// Runs the steps of a training run on the ranks that are here and collects the reports of all,
// until the steps are done, someone stops it or a rank fails.
#include "run/trainer.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "checkpoint/export_parameters.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/pack.h"
#include "run/not_finite.h"
#include "run/rank_report.h"
#include "run/ranks.h"

namespace mw {
namespace {

// Where the ranks that are here lay their reports for the first of them to collect. The ranks meet
// once in every step, so none is more than one step ahead: two places for each are enough.
class Mailbox {
 public:
  // Ranks from `first` on.
  Mailbox(int first, std::size_t ranks)
      : first_(first), places_{Place(ranks), Place(ranks)}, failed_(ranks, false) {}

  void put(std::int64_t step, RankReport report) {
    std::lock_guard lock(mutex_);
    Place& place = places_[step % 2];
    const auto at = static_cast<std::size_t>(report.rank - first_);
    place.reports[at] = std::move(report);
    place.there[at] = true;
    if (place.complete()) changed_.notify_all();
  }

  // Waits for all; false if a rank failed before its report. One that fails in the step after does
  // not take this step away.
  bool collect(std::int64_t step, std::vector<RankReport>& into) {
    std::unique_lock lock(mutex_);
    Place& place = places_[step % 2];
    changed_.wait(lock, [&] { return place.complete() || lacks_for_good(place); });
    if (!place.complete()) return false;
    into.assign(place.reports.size(), {});
    into.swap(place.reports);
    place.there.assign(place.there.size(), false);
    return true;
  }

  // After the step was reported, and whether it is to be the last one.
  void reported(std::int64_t step, bool last) {
    std::lock_guard lock(mutex_);
    reported_ = step;
    last_ = last;
    changed_.notify_all();
  }
  // Waits for that; true if there is no other step, or if a rank failed before.
  bool wait_reported(std::int64_t step) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return reported_ >= step || std::find(failed_.begin(), failed_.end(), true) != failed_.end();
    });
    return reported_ < step || last_;
  }

  void fail(int rank) {
    std::lock_guard lock(mutex_);
    failed_[static_cast<std::size_t>(rank - first_)] = true;
    changed_.notify_all();
  }

 private:
  struct Place {
    explicit Place(std::size_t ranks) : reports(ranks), there(ranks, false) {}
    bool complete() const { return std::find(there.begin(), there.end(), false) == there.end(); }
    std::vector<RankReport> reports;
    std::vector<bool> there;  // of each rank
  };
  bool lacks_for_good(const Place& place) const {
    for (std::size_t r = 0; r < failed_.size(); ++r)
      if (failed_[r] && !place.there[r]) return true;
    return false;
  }
  const int first_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Place places_[2];
  std::int64_t reported_ = -1;
  bool last_ = false;
  std::vector<bool> failed_;  // of each rank
};

// What one process has to say of a step.
struct ProcessReport {
  std::vector<RankReport> ranks;
  double cpu_seconds = 0;
};
template <class Pack>
void members(Pack& pack, ProcessReport& report) {
  pack(report.ranks, report.cpu_seconds);
}

RankReport report_of(Executor& executor, Ledger& ledger, StepOutcome& outcome,
                     const RankRuntime& runtime) {
  RankReport report;
  report.rank = executor.rank();
  for (int c = 0; c < category_count; ++c)
    report.memory[c] = ledger.memory(static_cast<Category>(c));
  report.peak_bytes = ledger.peak_bytes();
  report.communication = ledger.communication();
  report.work = ledger.work();
  report.rows = ledger.rows();
  report.rows_share = ledger.rows_share();
  report.chosen = executor.expert_loads();
  report.began = runtime.shared_clock(outcome.began);
  report.runs = std::move(outcome.runs);
  report.instructions = std::move(outcome.instructions);
  report.moments = std::move(outcome.moments);
  ledger.clear_step();
  return report;
}

class Run {
 public:
  Run(const Experiment& experiment, const std::atomic<bool>* stop, const OnStep& on_step,
      const std::atomic<bool>* end, Checkpoints* checkpoints)
      : experiment_(experiment),
        stop_(stop),
        end_(end),
        on_step_(on_step),
        checkpoints_(checkpoints),
        runtime_(runtime_of(experiment, *experiment.plan)),
        mailbox_(runtime_.here().front(), runtime_.here().size()) {}

  TrainOutcome run() {
    with_executors(
        runtime_, experiment_, *experiment_.plan, stop_,
        [this](Executor& executor, Ledger& ledger) { rank(executor, ledger); }, true);
    return outcome_;
  }

 private:
  void rank(Executor& executor, Ledger& ledger) try {
    Check check(experiment_.loss_scale != nullptr);
    if (experiment_.check) executor.watch(&check);
    const std::int64_t first = checkpoints_ != nullptr ? checkpoints_->first_step() : 0;
    if (checkpoints_ != nullptr) checkpoints_->begin(executor);
    if (executor.rank() == 0) outcome_.steps = first;
    if (experiment_.stops_on_nan) executor.leaves_out_not_finite();
    ledger.reset_peaks();
    const bool leads = executor.rank() == runtime_.here().front();  // of those that are here
    const bool waits = end_ != nullptr || (experiment_.observe && !runtime_.alone());
    double wall = seconds_now(), cpu = cpu_seconds_now();
    for (std::int64_t step = first; step < experiment_.steps; ++step) {
      StepOutcome done = executor.step(step, experiment_.schedule(step));
      StepReport report{step,          0, 0, done.loss, done.grad_norm, done.lr, done.loss_scale,
                        done.left_out, {}};
      report.left_out = done.left_out && !done.not_finite;
      const bool stop = done.stop || done.not_finite;
      const bool evaluates = !stop && experiment_.evaluation.due(step, experiment_.steps);
      mailbox_.put(step, report_of(executor, ledger, done, runtime_));
      if (leads) {
        if (!mailbox_.collect(step, report.ranks)) return;
        const double wall_now = seconds_now(), cpu_now = cpu_seconds_now();
        report.seconds = wall_now - wall;
        report.cpu_seconds = cpu_now - cpu;
        wall = wall_now;
        cpu = cpu_now;
        collect(executor.rank(), report);
        outcome_.steps = step + 1;
        outcome_.interrupted = stop && step + 1 < experiment_.steps;
      }
      if (evaluates) report.held_out = evaluate(executor, ledger);
      StepEnd at_end{step, done.loss, done.grad_norm, report.left_out,
                     stop || step + 1 == experiment_.steps};
      report.checkpoint = checkpoints_ != nullptr && checkpoints_->due(at_end);
      if (leads) {
        if (executor.rank() == 0 && checkpoints_ != nullptr) remember(report);
        if (executor.rank() == 0 && on_step_) on_step_(report);
        const bool traced = !report.ranks.empty() && !report.ranks.front().instructions.empty();
        bool last = end_ != nullptr && *end_;
        if (waits && !stop) last = told_last(executor.rank(), last);
        if (waits || evaluates || traced) {  // what was no part of a step
          wall = seconds_now();
          cpu = cpu_seconds_now();
        }
        mailbox_.reported(step, last);
      }
      if (done.not_finite) throw_not_finite(executor, step, done);
      if (waits && !stop && mailbox_.wait_reported(step)) at_end.last = true;
      if (checkpoints_ != nullptr && checkpoints_->after(executor, at_end) && leads)
        wall = seconds_now();
      if (at_end.last) break;
    }
    executor.watch(nullptr);
    if (experiment_.exporter) export_parameters(executor, *experiment_.exporter);
    keep(check.report());
  } catch (...) {
    mailbox_.fail(executor.rank());
    throw;
  }

  // Brings the reports of all processes to rank 0.
  void collect(int rank, StepReport& report) {
    if (runtime_.alone()) return;
    std::string own;
    if (rank != 0) own = pack(ProcessReport{std::move(report.ranks), report.cpu_seconds});
    const std::vector<std::string> all = runtime_.gather_processes(std::move(own));
    for (std::size_t p = 1; p < all.size(); ++p) {
      auto other = unpack<ProcessReport>(all[p]);
      report.cpu_seconds += other.cpu_seconds;
      for (RankReport& each : other.ranks) report.ranks.push_back(std::move(each));
    }
  }

  // Whether the first process says that no other step is to come.
  bool told_last(int rank, bool last) {
    if (runtime_.alone()) return last;
    return unpack<bool>(runtime_.broadcast_processes(rank == 0 ? pack(last) : ""));
  }

  // All ranks alike.
  HeldOut evaluate(Executor& executor, Ledger& ledger) const {
    const double began = seconds_now();
    HeldOut result;
    const std::int64_t batches = experiment_.evaluation.batches;
    for (std::int64_t batch = 0; batch < batches; ++batch)
      result.loss += executor.evaluate(batch) / static_cast<double>(batches);
    ledger.clear_step();
    result.seconds = seconds_now() - began;
    return result;
  }

  void remember(const StepReport& report) {
    checkpoints_->note(PastStep{report.seconds, report.loss, report.grad_norm, report.lr,
                                report.loss_scale, report.left_out});
    if (report.held_out)
      checkpoints_->note(
          PastEvaluation{report.step, report.held_out->loss, report.held_out->seconds});
  }

  void keep(const CheckReport& report) {
    const std::lock_guard lock(mutex_);
    if (outcome_.check.steps == 0 || report.seconds > outcome_.check.seconds)
      outcome_.check = report;
  }

  const Experiment& experiment_;
  const std::atomic<bool>*stop_, *end_;
  const OnStep& on_step_;
  Checkpoints* checkpoints_;
  RankRuntime runtime_;
  Mailbox mailbox_;
  std::mutex mutex_;      // of outcome_.check
  TrainOutcome outcome_;  // the rest is the first one's of those that are here
};

}  // namespace

TrainOutcome train(const Experiment& experiment, const std::atomic<bool>* stop,
                   const OnStep& on_step, const std::atomic<bool>* end, Checkpoints* checkpoints) {
  return Run(experiment, stop, on_step, end, checkpoints).run();
}

}  // namespace mw
