// mw.train and mw.plan: checks memory, predicts, runs, and prints what was measured
// beside what was predicted.
#include "app/verbs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "app/command.h"
#include "app/first_use.h"
#include "app/measurements.h"
#include "app/observe.h"
#include "app/progress.h"
#include "app/recorder.h"
#include "app/run_folder.h"
#include "app/run_observers.h"
#include "app/stuck_end.h"
#include "app/trace_process.h"
#include "checkpoint/hf_export.h"
#include "draw/plan_page.h"
#include "meshwright/engine/control_groups.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/processes.h"
#include "meshwright/engine/rank_calls.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/run.h"
#include "meshwright/engine/text.h"
#include "predict/imbalance.h"
#include "predict/machine.h"
#include "predict/memory_limit.h"
#include "predict/prediction.h"
#include "predict/recompute_gain.h"
#include "predict/shared_cores.h"
#include "record/log_claim.h"
#include "script/identity.h"
#include "script/priced_for.h"

namespace mw {
const Machine& machine_here(const RunSetup& setup) {
  return setup.platform->type() == at::kCPU ? measured_machine() : this_machine();
}

PricedFor::PricedFor(const RunRequest& asked, const RunSetup& setup)
    : cluster_(machine_of(asked)), machine_(cluster_ ? cluster_.get() : &machine_here(setup)) {}

namespace {

constexpr unsigned seconds_for_last_words = 20;
constexpr std::int64_t steps_unknown = -1;

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

// A table of measured numbers beside predicted ones.
std::string comparison(const Measurements& measured, const Prediction& predicted) {
  TextTable table({"", "measured", "predicted"}, {1, 2});
  const auto foretold = [&](const std::string& text) { return predicted.timed() ? text : "-"; };
  table.add({"step", fmt::format("{:.1f} ms", 1e3 * measured.step_seconds()),
             foretold(fmt::format("{:.1f} ms", 1e3 * predicted.step_seconds))});
  table.add({"tokens/s", format_count(measured.tokens_per_second()),
             foretold(format_count(predicted.tokens_per_second))});
  if (std::isfinite(predicted.peak_flops))
    table.add({"MFU", fmt::format("{:.1f} %", 100 * measured.mfu()),
               foretold(fmt::format("{:.1f} %", 100 * predicted.mfu))});
  if (predicted.stages.size() > 1) {
    table.add({"bubble", fmt::format("{:.1f} %", 100 * measured.bubble_fraction()),
               foretold(fmt::format("{:.1f} %", 100 * predicted.bubble_fraction))});
  }
  table.add({"memory, a rank's peak", bytes_text(measured.peak_bytes()),
             bytes_text(predicted.fullest().memory.peak)});
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    if (category == Category::host && measured.memory_peak(category) == 0) continue;
    std::int64_t most = 0;  // of the rank that has most of it, as in the measured column
    for (const StageForecast& stage : predicted.stages) most = std::max(most, stage.most[category]);
    table.add({fmt::format("  {}", name_of(category)), bytes_text(measured.memory_peak(category)),
               bytes_text(most)});
  }
  for (const auto& [key, use] : measured.communication_use()) {
    std::string forecast = "-";
    for (const CommunicationForecast& c : predicted.communication) {
      if (c.key == key) forecast = bytes_text(c.bytes);
    }
    table.add(
        {fmt::format("{} {}, {}", key.axis, key.op, key.phase), bytes_text(use.bytes), forecast});
  }
  return table.text("  ");
}

std::string train_text(const RunSetup& setup, const RunOutputs& outputs,
                       const Measurements& measured, const Prediction& predicted,
                       RunStatus status) {
  const auto& losses = measured.losses();
  std::string text = fmt::format("{} on {}: {} after {} of {}\n", setup.plan->mix(),
                                 plural(setup.plan->ranks(), "rank"), name_of(status),
                                 losses.size(), plural(setup.steps, "step"));
  if (!measured.reason().empty()) text += fmt::format("  {}\n", measured.reason());
  const std::vector<std::int64_t>& without = measured.steps_without_labels();
  const auto has_loss = [&](std::size_t step) {
    return !std::binary_search(without.begin(), without.end(), static_cast<std::int64_t>(step));
  };
  std::size_t first = 0, last = losses.size();
  while (first < last && !has_loss(first)) ++first;
  while (last > first && !has_loss(last - 1)) --last;
  if (first < last)
    text += fmt::format("  loss {:.4f} -> {:.4f}\n\n", losses[first], losses[last - 1]);
  if (measured.ran()) {
    const auto none = static_cast<std::int64_t>(without.size());
    if (none > 0)
      text += fmt::format("  {} left out, as no label of {} counts\n\n", plural(none, "step"),
                          none == 1 ? "it" : "them");
    if (const auto skipped = static_cast<std::int64_t>(measured.skipped_steps().size()) - none;
        skipped > 0)
      text += fmt::format("  {} left out, as gradients overflowed\n\n", plural(skipped, "step"));
    text += comparison(measured, predicted);
    if (const std::string note = rows_note(*setup.plan, measured.experts().most_rows_share());
        !note.empty())
      text += fmt::format("  {}\n", note);
    if (predicted.timed()) text += fmt::format("\n  predicted for {}\n", predicted.priced_for);
    if (const std::string parts = measured.parting().text; !parts.empty())
      text += fmt::format("  {}\n", parts);
    for (const std::string& pitfall : predicted.pitfalls)
      text += fmt::format("  pitfall  {}\n", pitfall);
    if (!measured.experts().empty()) text += "\n  experts: " + measured.experts().text() + "\n";
    text += measured.check_text();
  }
  text += files_text(outputs);
  return text;
}

// Predicts the experiment on the machine. If its steps have different plans: the times of the
// largest batch, the highest memory of any plan, and the bytes of the last step's plan.
Prediction prediction_of(const Experiment& experiment, const Machine& machine, bool traced = false,
                         bool advice = true) {
  const auto of = [&](const Plan& plan) { return predict(plan, machine, experiment.threads); };
  traced = traced || (!experiment.log.empty() && !experiment.trace.empty());
  Prediction prediction = predict(*experiment.plan, machine, experiment.threads, traced);
  if (advice) weigh_recompute(*experiment.plan, machine, experiment.threads, prediction);
  if (advice && !experiment.step_plans)
    prediction.pitfalls = find_pitfalls(experiment, experiment, machine, prediction);
  if (experiment.held_out_data) {
    prediction.held_out_seconds = static_cast<double>(experiment.evaluation.batches) *
                                  of(*experiment.held_out_plan).step_seconds;
  }
  const auto of_its_device = [&] {
    if (experiment.platform->type() != at::kCPU && &machine == &this_machine())
      prediction.forget_machine(
          fmt::format("it is to run on devices of {}, and nothing says what these can do",
                      quote(experiment.platform->name())));
    return prediction;
  };
  if (!experiment.step_plans) return of_its_device();
  for (std::size_t p = 1; p < experiment.step_plans->plans.size(); ++p) {
    const Prediction other = of(*experiment.step_plans->plans[p]);
    prediction.raise_memory(other);
    if (experiment.which_plan(experiment.steps - 1) == static_cast<int>(p))
      prediction.communication = other.communication;
  }
  return of_its_device();
}

// A run on CPUs is predicted for this machine, whatever its plan is priced for; one on GPUs for the
// cluster that the experiment names.
Prediction prediction_of_run(const Experiment& experiment) {
  const std::unique_ptr<Machine> cluster =
      experiment.platform->type() == at::kCPU ? nullptr : machine_of(experiment);
  return prediction_of(experiment, cluster ? *cluster : machine_here(experiment));
}

// The prediction as a run's table compares it: for a step of median length, and with what the last
// step's outer steps send.
Prediction for_table(const Experiment& experiment, Prediction prediction) {
  if (!prediction.outer) return prediction;
  for (const OuterEvent& due :
       outer_events(*experiment.plan->programs.front().outer, experiment.steps - 1)) {
    for (const auto& [event, rows] : prediction.outer->communication)
      if (event.same_kind(due))
        prediction.communication.insert(prediction.communication.end(), rows.begin(), rows.end());
  }
  std::ranges::sort(prediction.communication, {}, &CommunicationForecast::key);
  prediction.as_measured();
  return prediction;
}

// The plan as `plan` prints it, with a line about held-out batches and with the notes.
std::string plan_text(const RunSetup& setup, const Evaluation& held_out,
                      const std::vector<std::string>& notes, const Prediction& prediction) {
  std::string text = print(*setup.plan, prediction);
  if (setup.held_out_data) {
    text += fmt::format(
        "  held out {} every {}{}\n", plural(held_out.batches, "batch"),
        plural(held_out.every, "step"),
        prediction.timed()
            ? fmt::format(", {:.1f} ms predicted", 1e3 * prediction.held_out_seconds.value_or(0))
            : "");
  }
  for (const std::string& note : notes) text += fmt::format("  note  {}\n", note);
  return text;
}

// Text on the seconds, device hours and cost of the whole training, which go into `result` too.
std::string training_text(const RunRequest& asked, const Prediction& prediction, Json& result) {
  if (asked.tokens <= 0 || !prediction.timed() || prediction.devices <= 0) return "";
  const double seconds = asked.tokens / prediction.tokens_per_second,
               hours = seconds / 3600 * prediction.ranks;
  result["training_seconds"] = seconds;
  result["device_hours"] = hours;
  const bool days = seconds >= 2 * 86400;
  const auto number = [](double value) {
    return value < 1000 ? fmt::format("{:.3g}", value) : format_count(value);
  };
  std::string text =
      fmt::format("  tokens  {} take {:.3g} {} on {}: {} device hours", format_count(asked.tokens),
                  seconds / (days ? 86400 : 3600), days ? "days" : "hours",
                  plural(prediction.ranks, "device"), number(hours));
  if (asked.price > 0) {
    result["cost"] = hours * asked.price;
    text += fmt::format(", {} at {} each", number(hours * asked.price), format_number(asked.price));
  }
  if (prediction.idle_devices() > 0)
    text += fmt::format("; the cluster's other {} not counted", prediction.idle_devices());
  return text + "\n";
}

}  // namespace

PricedPlan price_plan(const Experiment& experiment, bool advice, bool traced) {
  PricedPlan priced{{experiment, experiment}, {}};
  priced.prediction = prediction_of(experiment, *priced.machine, traced, advice);
  return priced;
}

Json run_plan_verb(const Experiment& experiment, const PlanPictures& pictures) {
  PricedPlan priced = price_plan(experiment, /*advice=*/true, pictures.traces != nullptr);
  const Machine& machine = *priced.machine;
  Prediction& prediction = priced.prediction;
  // A plan that needs more than the limit is told so below, with what would fit.
  if (priced.machine.is_cluster() && experiment.memory > 0 &&
      prediction.highest_peak() <= experiment.memory)
    prediction.limit_memory(experiment.memory);
  if (pictures.traces != nullptr)
    pictures.traces->push_back(
        predicted_process(experiment.name, *experiment.plan, prediction, machine));
  std::vector<BraidPicture> braids;
  if (pictures.pages != nullptr || pictures.braids != nullptr)
    braids = braid_pictures(*experiment.plan, machine, experiment.threads);
  if (pictures.pages != nullptr) {
    pictures.pages->push_back(plan_page_data(*experiment.plan, prediction, experiment.memory,
                                             machine.kept_by_libraries()));
    if (!braids.empty()) pictures.pages->back()["braids"] = braids_page(braids);
  }
  Json result = {{"kind", "plan"}};
  result.update(prediction.to_json());
  result["plan"] = experiment.plan->mix();
  result["plan_hash"] = experiment.plan->hash();
  result.update(identity_of(experiment, experiment.seed));
  if (!experiment.notes.empty()) result["notes"] = experiment.notes;
  std::string text = plan_text(experiment, experiment.evaluation, experiment.notes, prediction);
  text += training_text(experiment, prediction, result);
  if (pictures.braids != nullptr) {
    pictures.braids->insert(pictures.braids->end(), braids.begin(), braids.end());
    result["braids"] = braids_json(braids);
    text += braids.empty() ? "  braids  none: the schedule has no groups of works\n"
                           : "\n" + braids_text(braids, 100);
  }
  if (experiment.memory > 0) {
    const std::int64_t peak = prediction.highest_peak();
    result["rank_memory_limit"] = experiment.memory;
    if (peak > experiment.memory) {
      const std::string hint = memory_hint(experiment, experiment, /*runs=*/false);
      result["fits"] = false;
      result["hint"] = hint;
      text += fmt::format("  does not fit: {} a rank against its limit of {}; {}\n",
                          bytes_text(peak), bytes_text(experiment.memory), hint);
    }
  }
  result["text"] = text;
  return result;
}

// The plan's text before its run; a line, if the plan was shown before, as in a script's loop.
static std::string plan_note(const std::string& plan, const RunRequest& asked,
                             const RunSetup& setup, Output& output) {
  const std::size_t after_hash = std::min(plan.size(), std::size_t{21}), line = plan.find('\n');
  if (output.says_first(plan.substr(after_hash))) return plan;
  return fmt::format("{}: as above, {} seed {}", plan.substr(0, line),
                     asked.name == setup.plan->mix() ? "" : asked.name + ",", setup.seed);
}

namespace {

// Sets what is done if a rank's thread hangs, until the end of the scope.
class IfRanksHang {
 public:
  explicit IfRanksHang(OnHang handler) : before_(comm::on_hang(std::move(handler))) {}
  ~IfRanksHang() { comm::on_hang(before_); }
  IfRanksHang(const IfRanksHang&) = delete;
  IfRanksHang& operator=(const IfRanksHang&) = delete;

 private:
  OnHang before_;
};

// Whether numbers were not finite, which ends a run on all ranks together. Checkpoints are
// completed.
bool is_an_end(const RankFailed& error) {
  const std::string& code = error.problems().front().code;
  return code == "run.not-finite" || code == "run.not-finite-once";
}

// Returns a function that measures after each step what else used the cores. It is empty if
// processes are on several machines, as each machine would have to count its own.
RunRecorder::Look core_use_of(const Processes* processes) {
  const bool several = processes != nullptr && processes->count() > 1;
  if (several && processes->on_this_host() < processes->count()) return {};
  struct State {
    CoreMeter meter{system_root(), seconds_now(), cpu_seconds_now()};
    // core seconds; elsewhere: of the other processes
    double elsewhere = 0, own = cpu_seconds_now();
  };
  return [several, state = std::make_shared<State>()](const StepReport& report) {
    const double own = cpu_seconds_now();
    if (several) state->elsewhere += std::max(0.0, report.cpu_seconds - (own - state->own));
    state->own = own;
    return state->meter.take(seconds_now(), own + state->elsewhere);
  };
}

// Trains in a process other than the first, which says all there is to say.
Json carry_ranks(const Experiment& experiment, RunSetup setup) {
  check_machine_memory(experiment, experiment, this_device().memory);
  const CheckpointStart start = begin_checkpoints(experiment, setup);
  Checkpoints* checkpoints = start.checkpoints.get();
  const IfRanksHang if_ranks_hang([](const RankFailed&) { ::_exit(exit_code_of(Stage::run)); });
  const IfStuck if_stuck(
      [](const Error& error) { ::_exit(exit_code_ending_by(stuck_in_run(error))); });
  const Observers observers(experiment, experiment, checkpoints, experiment.exporter.get());
  try {
    try {
      train(setup, observers.all({}, {}), stop_flag());
    } catch (const RankFailed& error) {
      if (!is_an_end(error)) throw;
    }
    if (checkpoints != nullptr) checkpoints->complete();
  } catch (...) {
    if (checkpoints != nullptr) checkpoints->break_off();
    throw;
  }
  return Json::object();
}

// At the end of the scope, waits until the recorder has done all that was handed over.
class SettledFirst {
 public:
  explicit SettledFirst(RunRecorder& recorder) : recorder_(recorder) {}
  ~SettledFirst() { recorder_.settle(); }
  SettledFirst(const SettledFirst&) = delete;
  SettledFirst& operator=(const SettledFirst&) = delete;

 private:
  RunRecorder& recorder_;
};

// A training in the process of rank 0: its run, records, messages and result.
class TrainVerb {
 public:
  TrainVerb(const Experiment& experiment, RunSetup setup, const ScriptFiles& script, Output& output,
            PluginRegistry& plugins, const Attempt& attempt)
      : experiment_(experiment),
        setup_(std::move(setup)),
        output_(output),
        attempt_(attempt),
        forced_(check_machine_memory(experiment, experiment, this_device().memory)),
        words_(stop_after_step),
        start_(begin_checkpoints(experiment, setup_, attempt)),
        claim_(claim_log(experiment, experiment, experiment.steps, start_.from(), attempt)),
        prediction_(prediction_of_run(experiment)),
        plan_(plan_text(experiment, experiment.evaluation, experiment.notes, prediction_)),
        origin_{script.text, &script.loaded,
                experiment.log.empty() ? Json() : machine_json(*experiment.plan, plugins),
                attempt.mark(), claim_.stays()},
        folder_(experiment, experiment.resolved, setup_.goes_on, origin_, plan_) {
    begin();
    prediction_ = for_table(experiment, std::move(prediction_));
    measured_.emplace(experiment, prediction_, origin_, checkpoints());
    measured_->started_again(attempt);
    if (const std::string& why = measured_->earlier_unread(); !why.empty())
      note(fmt::format("the earlier steps in {} cannot be read: {}; of them the new file has the "
                       "losses alone, and the earlier file is kept",
                       experiment.log, why),
           true);
  }

  Json run() {
    std::mutex last_words;  // taken by the handler that comes first, until the process ends
    const IfRanksHang if_ranks_hang([&](const RankFailed& error) {
      last_words.lock();
      // ends the process, if what hangs holds a lock that these need
      ::alarm(seconds_for_last_words);
      if (settles_in_time(&error.problems().front())) ranks_failed(error);
      claim_.let_go();
      output_.error(error);
      std::fflush(nullptr);
      ::_exit(exit_code_of(Stage::run));
    });
    const IfStuck if_stuck([&](const Error& error) {
      last_words.lock();
      ::alarm(seconds_for_last_words);
      stuck(error);
    });
    try {
      return trained();
    } catch (const Stopped& error) {
      broke_off(RunStatus::interrupted, -1, error.what());
      throw;
    } catch (const RankFailed& error) {
      ranks_failed(error);
      throw;
    } catch (const std::exception& error) {
      const auto* known = dynamic_cast<const Error*>(&error);
      settle();
      attempt_.failed(known != nullptr ? known->problems().front() : problem_of(error),
                      measured_->steps());
      broke_off(RunStatus::failed, -1, error.what());
      throw;
    }
  }

 private:
  Checkpoints* checkpoints() const { return start_.checkpoints.get(); }

  void note(const std::string& text, bool lost = false) {
    if (text.empty()) return;
    lost ? output_.warn(text) : output_.note(text);
    folder_.say(text);
  }

  void begin() {
    output_.note(plan_note(plan_, experiment_, experiment_, output_));
    folder_.say(plan_);
    note(forced_, true);
    for (const auto& text : {claim_.note(), trace_note(experiment_, experiment_, experiment_.log),
                             begin_export(experiment_.exporter.get())})
      note(text);
    for (const std::string& text : start_.lost) note(text, true);
    for (const std::string& text : start_.notes) note(text);
    if (checkpoints() != nullptr) note(checkpoints()->left_behind(), true);
  }

  Json result_of(RunStatus status) const {
    Json result = {{"kind", "train"}};
    result.update(measured_->result(status));
    result["plan"] = plan_;
    if (!experiment_.notes.empty()) result["notes"] = experiment_.notes;
    result["text"] = train_text(experiment_, experiment_, *measured_, prediction_, status);
    if (exported_) add_export(*experiment_.exporter, result);
    return result;
  }

  Json ended(RunStatus status) {
    Json result = result_of(status);
    folder_.say("\n" + result["text"].get<std::string>());
    folder_.finish(result);
    return result;
  }

  // Waits for the recorder, before anything is read or written that it works on. Drops what it
  // threw, as another error came first.
  void settle() {
    if (recorder_) recorder_->settle();
  }

  // Like settle(), but for some seconds only, as the process ends. False: something is not written,
  // and nobody may touch it; `failure` is told to what starts the run again.
  bool settles_in_time(const Problem* failure) {
    const std::chrono::seconds patience(seconds_for_last_words / 2);
    if (!recorder_ || recorder_->settle(patience)) return true;
    if (failure != nullptr) attempt_.failed(*failure, steps_unknown);
    output_.note(fmt::format(
        "the run file is left as it is: what is written there has taken longer than {} s",
        patience.count()));
    return false;
  }

  // Ends a run that broke off: its result and first error come out, whatever the run file's state.
  void broke_off(RunStatus status, int rank, const std::string& why) {
    settle();
    if (checkpoints() != nullptr) checkpoints()->break_off();
    for (const auto& [text, failed] : measured_->take_checkpoints()) note(text, failed);
    const std::string lacks = measured_->fail(status, rank, why, [&] { return result_of(status); });
    if (!lacks.empty()) note(fmt::format("and the run file could not be closed: {}", lacks), true);
    output_.result(result_of(status));
    try {
      ended(status);
    } catch (const std::exception& error) {
      output_.note(error.what());
    }
  }

  void ranks_failed(const RankFailed& error) {
    settle();
    attempt_.failed(error.problems().front(), measured_->steps());
    if (!error.places().empty()) note("where each rank was\n\n" + comm::table_of(error.places()));
    measured_->keep_places(error.places());
    broke_off(RunStatus::failed, error.rank(), error.what());
  }

  [[noreturn]] void stuck(const Error& error) {
    const Error told = stuck_in_run(error);
    const bool stopped = exit_code_ending_by(told) == exit_interrupted;
    if (settles_in_time(stopped ? nullptr : &told.problems().front())) {
      if (!stopped) attempt_.failed(told.problems().front(), measured_->steps());
      broke_off(stopped ? RunStatus::interrupted : RunStatus::failed, -1, told.what());
    }
    claim_.let_go();
    end_stuck(told, output_);
  }

  // Records a step and shows it to people, in the recorder's thread.
  void show(const StepReport& report, const CoreUse& use, const std::optional<HeldOut>& held_out) {
    const double began = core_seconds_of(CLOCK_THREAD_CPUTIME_ID);
    const std::string news = measured_->add(report, use, held_out);
    const std::vector<Measurements::CheckpointWords> written = measured_->take_checkpoints();
    const double added = core_seconds_of(CLOCK_THREAD_CPUTIME_ID);
    measured_->took("log, in its own thread", added - began);
    for (const auto& progress : shown_) {
      progress->step({report.step, report.loss, report.seconds, report.tokens,
                      measured_->peak_bytes(), report.labels > 0},
                     seconds_now());
      if (!news.empty()) progress->note(news);
      for (const auto& each : written) progress->note(each.text);
    }
    for (const auto& each : written)
      if (each.failed && output_.quiet()) output_.warn(each.text);
    measured_->took("progress, in that thread", core_seconds_of(CLOCK_THREAD_CPUTIME_ID) - added);
  }

  Json trained() {
    if (!output_.quiet())
      shown_.push_back(std::make_unique<Progress>(stderr, experiment_.steps, style_for(stderr)));
    if (folder_.output() != nullptr)
      shown_.push_back(
          std::make_unique<Progress>(folder_.output(), experiment_.steps, ProgressStyle{}));
    recorder_.emplace(
        [this](const StepReport& report, const CoreUse& use,
               const std::optional<HeldOut>& held_out) { show(report, use, held_out); },
        core_use_of(experiment_.processes), [this] { measured_->flush_if_due(); });
    OwnMetrics own_metrics(experiment_.loss_scale != nullptr, experiment_.data->masks_labels());
    RecordMetrics metrics(*recorder_, *measured_);
    const Observers observers(experiment_, experiment_, checkpoints(), experiment_.exporter.get());
    const SettledFirst before_observers_go(*recorder_);  // accounts of steps read `observers.alone`
    if (checkpoints() != nullptr)
      checkpoints()->before_copies([this] {
        recorder_->hand_over([this] { measured_->flush(); });
        recorder_->drain();
      });
    measured_->hold_accounts_to(observers.alone ? &*observers.alone : nullptr);
    TrainOutcome outcome;
    try {
      outcome = train(setup_, observers.all({&*recorder_, &own_metrics}, {&metrics}), stop_flag());
      recorder_->drain();
    } catch (const RankFailed& error) {
      if (!is_an_end(error)) throw;
      recorder_->drain();
      measured_->stopped_diverging(error);
      for (std::size_t k = 1; k < error.problems().size(); ++k)
        note(error.problems()[k].message, true);
      attempt_.failed(error.problems().front(), measured_->steps());
    }
    if (checkpoints() != nullptr) checkpoints()->complete();
    if (outcome.steps > 0)
      exported_ = finish_export(experiment_.exporter.get(), outcome.interrupted);
    for (const auto& progress : shown_) progress->finish();
    shown_.clear();
    for (const auto& [text, failed] : measured_->take_checkpoints()) note(text, failed);
    if (outcome.interrupted && experiment_.exporter && !exported_)
      note(fmt::format(
          "export: {} stays as it was, as this run was interrupted before its last step",
          experiment_.exporter->folder().string()));
    measured_->take(observers.checked());
    const RunStatus status = measured_->conclude(outcome.interrupted, outcome.ended_by);
    measured_->close(status, result_of(status));
    if (status == RunStatus::done && measured_->earlier_unread().empty()) claim_.done();
    return ended(status);
  }

  const Experiment& experiment_;
  RunSetup setup_;  // the experiment's, with its first step and the hint for its memory limit
  Output& output_;
  const Attempt& attempt_;
  const std::string forced_;
  const OnStopSay words_;
  const CheckpointStart start_;
  LogClaim claim_;
  Prediction prediction_;
  const std::string plan_;
  const RunOrigin origin_;
  RunFolder folder_;
  std::optional<Measurements> measured_;
  std::vector<std::unique_ptr<Progress>> shown_;
  std::optional<RunRecorder> recorder_;  // destroyed before the members that it writes to
  bool exported_ = false;
};

}  // namespace

Json run_train(const Experiment& experiment, const ScriptFiles& script, Output& output,
               PluginRegistry& plugins, const Attempt& attempt) {
  check_thread_ranks(*experiment.plan, experiment.processes);
  if (experiment.account && experiment.log.empty())
    throw Error(Stage::options, "option.needs", "account", "account: it is written to the run file",
                "name one: log = \"runs/NAME.h5\"");
  RunSetup setup = experiment;
  if (experiment.memory > 0) setup.memory_hint = check_memory_limit(experiment, experiment);
  if (experiment.processes != nullptr && !experiment.processes->first())
    return carry_ranks(experiment, std::move(setup));
  return TrainVerb(experiment, std::move(setup), script, output, plugins, attempt).run();
}

}  // namespace mw
