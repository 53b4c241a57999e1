#include "app/verbs.h"

#include <fmt/format.h>

#include <chrono>

#include "app/measurements.h"
#include "base/interrupt.h"
#include "base/text.h"
#include "engine/trainer.h"
#include "engine/verify.h"

namespace mw {
namespace {

std::int64_t parameters_of(const Plan& plan) {
  std::int64_t count = 0;
  for (const int value : plan.graph->parameters()) count += plan.graph->count(value);
  return count;
}

// A line every two seconds, and for the first and last step.
class StepLines {
 public:
  StepLines(const Experiment& experiment, Output& output)
      : experiment_(experiment), output_(output) {}

  void add(const StepReport& report) {
    const auto now = std::chrono::steady_clock::now();
    const bool edge = report.step == 0 || report.step + 1 == experiment_.steps;
    if (!edge && now - said_ < std::chrono::seconds(2)) return;
    said_ = now;
    output_.note(fmt::format(
        "step {}/{}  loss {:.4f}  {:.0f} tokens/s", report.step + 1, experiment_.steps, report.loss,
        static_cast<double>(experiment_.plan->tokens_per_step()) / report.seconds));
  }

 private:
  const Experiment& experiment_;
  Output& output_;
  std::chrono::steady_clock::time_point said_;
};

std::string train_text(const Experiment& experiment, const Measurements& measured,
                       RunStatus status) {
  const auto& losses = measured.losses();
  std::string text = fmt::format("{} on {}, {} after {} of {} steps\n", experiment.plan->mix(),
                                 plural(experiment.plan->ranks(), "rank"), name_of(status),
                                 losses.size(), experiment.steps);
  if (!losses.empty()) {
    text += fmt::format("  loss        {:.4f} -> {:.4f}\n", losses.front(), losses.back());
    text += fmt::format("  speed       {:.0f} tokens/s, {:.1f} ms a step (median)\n",
                        measured.tokens_per_second(), 1e3 * measured.step_seconds());
    text += fmt::format("  memory      {} at most on a rank\n",
                        format_bytes(static_cast<double>(measured.peak_bytes())));
  }
  if (!experiment.log.empty()) text += fmt::format("  run file    {}\n", experiment.log);
  return text;
}

}  // namespace

std::string plan_text(const Plan& plan) {
  std::string text = fmt::format("{}: {}\n", plan.mix(), plan.mesh.describe());
  text += fmt::format("  parameters  {}\n", parameters_of(plan));
  text += fmt::format(
      "  batch       {} sequences of {} tokens = {} ways x {} microbatches x {} sequences\n",
      plan.request.batch, plan.request.sequence, plan.batch_ways, plan.microbatches,
      plan.microbatch);
  for (const Rule& rule : plan.rules) {
    text += fmt::format("  rule        {} -> {} ({})\n", rule.dim.name(), rule.axis, rule.strategy);
  }
  for (const std::string& note : plan.notes) text += fmt::format("  note        {}\n", note);
  return text;
}

Json run_plan_verb(const Experiment& experiment) {
  const Plan& plan = *experiment.plan;
  Json result;
  result["kind"] = "plan";
  result["plan"] = plan.mix();
  result["plan_hash"] = plan.hash();
  result["ranks"] = plan.ranks();
  result["parameters"] = parameters_of(plan);
  result["text"] = plan_text(plan);
  return result;
}

Json run_train(const Experiment& experiment, const std::string& script, Output& output) {
  if (!experiment.log.empty()) check_writable(experiment.log);
  output.note(plan_text(*experiment.plan));
  Measurements measured(experiment, script);
  StepLines lines(experiment, output);
  const auto result_of = [&](RunStatus status) {
    Json result = {{"kind", "train"}};
    result.update(measured.result(status));
    result["text"] = train_text(experiment, measured, status);
    return result;
  };
  try {
    const TrainOutcome outcome = train(experiment, stop_flag(), [&](const StepReport& report) {
      measured.add(report);
      lines.add(report);
    });
    const RunStatus status = outcome.interrupted ? RunStatus::interrupted : RunStatus::done;
    measured.finish(status);
    return result_of(status);
  } catch (const std::exception&) {
    measured.finish(RunStatus::failed);
    output.result(result_of(RunStatus::failed));
    throw;
  }
}

Json run_verify(const Experiment& experiment) {
  const VerifyOutcome outcome = verify(experiment);
  Json result;
  result["kind"] = "verify";
  result["verdict"] = outcome.equal ? "equal" : "different";
  result["plan"] = experiment.plan->mix();
  result["plan_hash"] = experiment.plan->hash();
  result["precision"] = "fp64";
  result["max_relative_error"] = {
      {"loss", outcome.loss}, {"gradients", outcome.gradients}, {"parameters", outcome.parameters}};
  result["worst"] = outcome.worst;
  result["first_divergence"] = outcome.diverged ? Json(outcome.first.op) : Json();
  result["steps"] = outcome.steps;
  result["text"] = describe(outcome, experiment.plan->mix());
  return result;
}

}  // namespace mw
