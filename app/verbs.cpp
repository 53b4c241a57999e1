// mw.train and mw.plan: checks memory, predicts, runs, and prints what was measured
// beside what was predicted.
#include "app/verbs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

#include "app/checkpoint_start.h"
#include "app/command.h"
#include "app/export.h"
#include "app/machine_facts.h"
#include "app/measurements.h"
#include "app/progress.h"
#include "app/run_folder.h"
#include "app/stuck_end.h"
#include "app/trace_process.h"
#include "meshwright/engine/clock.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/processes.h"
#include "meshwright/engine/rank_calls.h"
#include "meshwright/engine/text.h"
#include "predict/imbalance.h"
#include "predict/machine.h"
#include "predict/memory_limit.h"
#include "predict/prediction.h"
#include "predict/recompute_gain.h"
#include "predict/shared_cores.h"
#include "record/log_claim.h"
#include "report/plan_page.h"
#include "run/ranks.h"
#include "run/trainer.h"
#include "script/identity.h"
#include "script/priced_for.h"

namespace mw {
namespace {

constexpr unsigned seconds_for_last_words = 20;

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

// Measured beside predicted.
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
    std::int64_t most = 0;  // as measured: of the rank that has most of it
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

std::string train_text(const Experiment& experiment, const Measurements& measured,
                       const Prediction& predicted, RunStatus status) {
  const auto& losses = measured.losses();
  std::string text = fmt::format("{} on {}: {} after {} of {}\n", experiment.plan->mix(),
                                 plural(experiment.plan->ranks(), "rank"), name_of(status),
                                 losses.size(), plural(experiment.steps, "step"));
  if (!measured.reason().empty()) text += fmt::format("  {}\n", measured.reason());
  if (!losses.empty()) {
    text += fmt::format("  loss {:.4f} -> {:.4f}\n\n", losses.front(), losses.back());
  }
  if (measured.ran()) {
    if (const auto skipped = static_cast<std::int64_t>(measured.skipped_steps().size());
        skipped > 0)
      text += fmt::format("  {} left out, as gradients overflowed\n\n", plural(skipped, "step"));
    text += comparison(measured, predicted);
    if (const std::string note = rows_note(*experiment.plan, measured.experts().most_rows_share());
        !note.empty())
      text += fmt::format("  {}\n", note);
    if (predicted.timed()) text += fmt::format("\n  predicted for {}\n", predicted.priced_for);
    if (!measured.experts().empty()) text += "\n  experts: " + measured.experts().text() + "\n";
    if (experiment.check) text += "\n" + measured.check_text();
  }
  if (!experiment.log.empty()) {
    const bool folder = !experiment.folder.empty();
    text += fmt::format("\n  run {}: {}\n", folder ? "folder" : "file",
                        folder ? experiment.folder : experiment.log);
  }
  return text;
}

// Predicts the experiment on the machine. Where its steps differ: the times of the largest batch,
// the highest memory of any step, the bytes of the last one.
Prediction prediction_of(const Experiment& experiment, const Machine& machine,
                         bool traced = false) {
  const auto of = [&](const Plan& plan) { return predict(plan, machine, experiment.threads); };
  traced = traced || (!experiment.log.empty() && !experiment.trace.empty());
  Prediction prediction = predict(*experiment.plan, machine, experiment.threads, traced);
  weigh_recompute(*experiment.plan, machine, experiment.threads, prediction);
  if (experiment.evaluation.data) {
    prediction.held_out_seconds = static_cast<double>(experiment.evaluation.batches) *
                                  of(*experiment.evaluation.plan).step_seconds;
  }
  const auto of_its_device = [&] {
    if (&machine == &this_machine() && experiment.device != at::kCPU)
      prediction.forget_machine(
          "it is to run on a GPU (device = \"cuda\"), and nothing says what that can do");
    return prediction;
  };
  if (!experiment.step_plans) return of_its_device();
  for (std::size_t p = 1; p < experiment.step_plans->plans.size(); ++p) {
    const Prediction other = of(*experiment.step_plans->plans[p]);
    for (std::size_t s = 0; s < prediction.stages.size(); ++s) {
      StageForecast& stage = prediction.stages[s];
      stage.memory = highest_of(stage.memory, other.stages[s].memory);
      stage.most = highest_of(stage.most, other.stages[s].most);
    }
    prediction.memory_needed = std::max(prediction.memory_needed, other.memory_needed);
    prediction.host_needed = std::max(prediction.host_needed, other.host_needed);
    prediction.fits = prediction.fits && other.fits;
    if (experiment.which_plan(experiment.steps - 1) == static_cast<int>(p))
      prediction.communication = other.communication;
  }
  return of_its_device();
}

// As `plan` prints it, and what the run computes beside its steps.
std::string plan_text(const Experiment& experiment, const Prediction& prediction) {
  std::string text = print(*experiment.plan, prediction);
  if (experiment.evaluation.data) {
    text += fmt::format(
        "  held out {} every {}{}\n", plural(experiment.evaluation.batches, "batch"),
        plural(experiment.evaluation.every, "step"),
        prediction.timed()
            ? fmt::format(", {:.1f} ms predicted", 1e3 * prediction.held_out_seconds.value_or(0))
            : "");
  }
  return text;
}

}  // namespace

Json run_plan_verb(const Experiment& experiment, const PlanPictures& pictures) {
  const std::unique_ptr<Machine> cluster = machine_of(experiment);
  const Machine& machine = cluster ? *cluster : this_machine();
  Prediction prediction = prediction_of(experiment, machine, pictures.traces != nullptr);
  // A plan above it is told so below, with what would fit.
  if (cluster && experiment.memory > 0 && prediction.fullest().memory.peak <= experiment.memory)
    prediction.limit_memory(experiment.memory);
  if (pictures.traces != nullptr)
    pictures.traces->push_back(
        predicted_process(experiment.name, *experiment.plan, prediction, machine));
  if (pictures.pages != nullptr)
    pictures.pages->push_back(plan_page_data(*experiment.plan, prediction, experiment.memory));
  Json result = {{"kind", "plan"}};
  result.update(prediction.to_json());
  result["plan"] = experiment.plan->mix();
  result["plan_hash"] = experiment.plan->hash();
  result.update(identity_of(experiment));
  std::string text = plan_text(experiment, prediction);
  if (experiment.memory > 0) {
    const std::int64_t peak = prediction.fullest().memory.peak;
    result["rank_memory_limit"] = experiment.memory;
    if (peak > experiment.memory) {
      const std::string hint = memory_hint(experiment, /*runs=*/false);
      result["fits"] = false;
      result["hint"] = hint;
      text += fmt::format("  does not fit: {} a rank against its limit of {}; {}\n",
                          bytes_text(peak), bytes_text(experiment.memory), hint);
    }
  }
  result["text"] = text;
  return result;
}

// A loop's later runs of one plan get a line: what is beside the hash and the names is as before.
static std::string plan_note(const std::string& plan, const Experiment& experiment,
                             Output& output) {
  const std::size_t after_hash = std::min(plan.size(), std::size_t{21}), line = plan.find('\n');
  if (output.says_first(plan.substr(after_hash))) return plan;
  return fmt::format("{}: as above, {} seed {}", plan.substr(0, line),
                     experiment.name == experiment.plan->mix() ? "" : experiment.name + ",",
                     experiment.seed);
}

namespace {

// Until the end of the scope, what is done where a rank's thread does not come back.
class IfRanksHang {
 public:
  explicit IfRanksHang(OnHang handler) : before_(comm::on_hang(std::move(handler))) {}
  ~IfRanksHang() { comm::on_hang(before_); }
  IfRanksHang(const IfRanksHang&) = delete;
  IfRanksHang& operator=(const IfRanksHang&) = delete;

 private:
  OnHang before_;
};

// Numbers that are not finite end a run on all ranks together, and its checkpoints as any end does.
bool is_an_end(const RankFailed& error) {
  return error.problems().front().code == "run.not-finite";
}

// In a process that only carries ranks: what there is to say the first one says.
Json carry_ranks(Experiment experiment) {
  check_machine_memory(experiment, this_device().memory);
  const CheckpointStart start = begin_checkpoints(experiment);
  Checkpoints* checkpoints = start.checkpoints.get();
  const IfRanksHang if_ranks_hang([](const RankFailed&) { ::_exit(exit_code_of(Stage::run)); });
  const IfStuck if_stuck(
      [](const Error& error) { ::_exit(exit_code_ending_by(stuck_in_run(error))); });
  try {
    try {
      train(experiment, stop_flag(), nullptr, nullptr, checkpoints);
    } catch (const RankFailed& error) {
      if (!is_an_end(error)) throw;
    }
    if (checkpoints != nullptr) checkpoints->finish();
  } catch (...) {
    if (checkpoints != nullptr) checkpoints->break_off();
    throw;
  }
  return Json::object();
}

}  // namespace

Json run_train(const Experiment& experiment, const std::string& script, Output& output,
               PluginRegistry& plugins, const Attempt& attempt) {
  check_thread_ranks(*experiment.plan, experiment.processes);
  Experiment limited = experiment;
  if (experiment.memory > 0) limited.memory_hint = check_memory_limit(experiment);
  if (experiment.processes != nullptr && !experiment.processes->first())
    return carry_ranks(std::move(limited));
  const std::string forced = check_machine_memory(experiment, this_device().memory);
  const OnStopSay words(stop_after_step);
  const CheckpointStart start = begin_checkpoints(limited);
  Checkpoints* checkpoints = start.checkpoints.get();
  LogClaim claim = claim_log(experiment, start.from());
  const Prediction prediction = prediction_of(experiment, this_machine());
  const std::string plan = plan_text(experiment, prediction);
  const RunOrigin origin{script,
                         experiment.log.empty() ? Json() : machine_json(experiment, plugins)};
  RunFolder folder(limited, origin, plan);
  const auto note = [&](const std::string& text) {
    if (text.empty()) return;
    output.note(text);
    folder.say(text);
  };
  output.note(plan_note(plan, experiment, output));
  folder.say(plan);
  note(forced);
  note(claim.note());
  note(begin_export(experiment));
  for (const std::string& text : start.notes) note(text);
  if (checkpoints != nullptr) note(checkpoints->left_behind());
  Measurements measured(experiment, prediction, origin, checkpoints);
  measured.started_again(attempt);
  bool exported = false;
  const auto result_of = [&](RunStatus status) {
    Json result = {{"kind", "train"}};
    result.update(measured.result(status));
    result["plan"] = plan;
    result["text"] = train_text(experiment, measured, prediction, status);
    if (exported) add_export(experiment, result);
    return result;
  };
  const auto ended = [&](RunStatus status) {
    Json result = result_of(status);
    folder.say("\n" + result["text"].get<std::string>());
    folder.finish(result);
    return result;
  };
  // The result and the first error must come out, whatever has become of the run file.
  const auto broke_off = [&](RunStatus status, int rank, const std::string& why) {
    if (checkpoints != nullptr) checkpoints->break_off();
    for (const std::string& text : measured.take_checkpoints()) note(text);
    const std::string lacks = measured.fail(status, rank, why, [&] { return result_of(status); });
    if (!lacks.empty()) note(fmt::format("and the run file could not be closed: {}", lacks));
    output.result(result_of(status));
    try {
      ended(status);
    } catch (const std::exception& error) {
      output.note(error.what());
    }
  };
  const auto ranks_failed = [&](const RankFailed& error) {
    attempt.failed(error.problems().front(), measured.steps());
    if (!error.places().empty()) note("where each rank was\n\n" + comm::table_of(error.places()));
    measured.keep_places(error.places());
    broke_off(RunStatus::failed, error.rank(), error.what());
  };
  std::mutex last_words;  // of whoever comes first; the process ends while it holds them
  const IfRanksHang if_ranks_hang([&](const RankFailed& error) {
    last_words.lock();
    ::alarm(seconds_for_last_words);  // what hangs may hold what is needed for them
    ranks_failed(error);
    claim.let_go();
    output.error(error);
    std::fflush(nullptr);
    ::_exit(exit_code_of(Stage::run));
  });
  const IfStuck if_stuck([&](const Error& error) {
    last_words.lock();
    ::alarm(seconds_for_last_words);
    const Error told = stuck_in_run(error);
    const bool stopped = exit_code_ending_by(told) == exit_interrupted;
    if (!stopped) attempt.failed(told.problems().front(), measured.steps());
    broke_off(stopped ? RunStatus::interrupted : RunStatus::failed, -1, told.what());
    claim.let_go();
    end_stuck(told, output);
  });
  try {
    std::vector<std::unique_ptr<Progress>> shown;
    if (!output.quiet())
      shown.push_back(std::make_unique<Progress>(stderr, experiment.steps, style_for(stderr)));
    if (folder.output() != nullptr)
      shown.push_back(
          std::make_unique<Progress>(folder.output(), experiment.steps, ProgressStyle{}));
    const auto on_step = [&](const StepReport& report) {
      const std::string news = measured.add(report);
      for (const auto& progress : shown) {
        progress->step({report.step, report.loss, report.seconds,
                        experiment.plan_at(report.step).tokens_per_step(), measured.peak_bytes()},
                       seconds_now());
        if (!news.empty()) progress->note(news);
      }
      for (const std::string& text : measured.take_checkpoints())
        for (const auto& progress : shown) progress->note(text);
    };
    TrainOutcome outcome;
    try {
      outcome = train(limited, stop_flag(), on_step, measured.end(), checkpoints);
      exported = finish_export(experiment);
    } catch (const RankFailed& error) {
      if (!is_an_end(error)) throw;
      measured.stopped_diverging(error);
      attempt.failed(error.problems().front(), measured.steps());
    }
    if (checkpoints != nullptr) checkpoints->finish();
    for (const auto& progress : shown) progress->finish();
    shown.clear();
    for (const std::string& text : measured.take_checkpoints()) note(text);
    measured.take(outcome.check);
    const RunStatus status = measured.conclude(outcome.interrupted);
    measured.close(status, result_of(status));
    if (status == RunStatus::done) claim.done();
    return ended(status);
  } catch (const Stopped& error) {
    broke_off(RunStatus::interrupted, -1, error.what());
    throw;
  } catch (const RankFailed& error) {
    ranks_failed(error);
    throw;
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    attempt.failed(known != nullptr ? known->problems().front() : problem_of(error),
                   measured.steps());
    broke_off(RunStatus::failed, -1, error.what());
    throw;
  }
}

}  // namespace mw
