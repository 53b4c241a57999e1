// Predicts a plan without its recompute or its slices, and says so where that would hold no more.
#include "predict/recompute_gain.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/text.h"
#include "predict/fit.h"

namespace mw {
namespace {

// Most Plan::work, about microseconds, of the other plan.
constexpr double most_work_for_a_note = 1e6;
constexpr double little = 0.01;  // share of the peak without recompute

bool recomputes(const RecomputePolicy& policy) {
  return (policy.kind != RecomputePolicy::Kind::none || policy.gathers) && policy.fit == 0;
}

// Whether backward is in two pieces: then recomputed tensors are kept until the second, W.
bool splits_backward(const Plan& plan) {
  return std::ranges::any_of(plan.programs, [](const Program& program) {
    return std::ranges::any_of(program.segments, [](const Segment& segment) {
      // A program with braids still has the segments of their works.
      return segment.kind == SegmentKind::wgrad;
    });
  });
}

std::int64_t most_on_host(const Prediction& prediction) {
  std::int64_t most = 0;
  for (const StageForecast& stage : prediction.stages)
    most = std::max(most, stage.most[Category::host]);
  return most;
}

RecomputeGain gain_of(const Prediction& without) {
  return {without.fullest().memory.peak, without.step_seconds, most_on_host(without)};
}

bool in_slices(const StrategyChoice& choice) {
  return choice.name == "coshard";
}

void weigh_slices(const Plan& plan, const Machine& machine, int threads, Prediction& prediction) {
  PlanRequest request = plan.request;
  if (std::erase_if(request.strategies, in_slices) == 0 || request.recompute.fit > 0 ||
      plan.work > most_work_for_a_note)
    return;
  if (const auto without = plan_if_possible(request))
    prediction.slices = gain_of(predict(*without, machine, threads));
}

void weigh_stages(const Plan& plan, const Machine& machine, int threads, Prediction& prediction) {
  const RecomputePolicy& policy = plan.request.recompute;
  if (policy.kind != RecomputePolicy::Kind::fixed || !policy.settings.contains("stages")) return;
  prediction.recompute_by_stage = RecomputeByStage{policy.settings["stages"], std::nullopt};
  if (plan.work > most_work_for_a_note) return;
  if (const auto alike = with_recompute_alike(plan))
    prediction.recompute_by_stage->seconds_alike = predict(*alike, machine, threads).step_seconds;
}

// The text on `what` that costs time for nothing; empty where it frees memory of a device or of the
// host, or makes a step shorter.
std::string waste_of(const std::string& what, const std::optional<RecomputeGain>& found,
                     const Plan& plan, const Prediction& prediction) {
  if (!found) return "";
  const RecomputeGain& gain = *found;
  const std::int64_t peak = prediction.fullest().memory.peak, freed = gain.peak_without - peak;
  const auto much = [](std::int64_t less, std::int64_t of) {
    return less > 0 && static_cast<double>(less) >= little * static_cast<double>(of);
  };
  if (much(freed, gain.peak_without) ||
      much(gain.host_without - most_on_host(prediction), gain.host_without))
    return "";
  const bool timed = prediction.timed() && gain.seconds_without > 0;
  if (timed && prediction.step_seconds < gain.seconds_without) return "";
  std::string text =
      freed > 0
          ? fmt::format("{} frees {} of the fullest rank's {}", what, memory_text(freed),
                        memory_text(gain.peak_without))
          : fmt::format("{} frees no memory: the fullest rank needs {} with it and {} without it",
                        what, memory_text(peak), memory_text(gain.peak_without));
  if (timed)
    text += fmt::format(", and a step takes {:.0f} % longer",
                        100 * (prediction.step_seconds / gain.seconds_without - 1));
  if (splits_backward(plan))
    text +=
        "; this schedule splits backward into I and W, and stores the recomputed tensors from I "
        "to W";
  return text;
}

}  // namespace

void weigh_recompute(const Plan& plan, const Machine& machine, int threads,
                     Prediction& prediction) {
  weigh_stages(plan, machine, threads, prediction);
  weigh_slices(plan, machine, threads, prediction);
  if (!recomputes(plan.request.recompute) || plan.work > most_work_for_a_note) return;
  PlanRequest request = plan.request;
  request.recompute = {};
  if (const auto without = plan_if_possible(request))
    prediction.recompute = gain_of(predict(*without, machine, threads));
}

void add_waste(const Prediction& prediction, Json& json) {
  if (prediction.timed() && prediction.idle_devices() > 0)
    json["idle_devices"] = prediction.idle_devices();
  if (const auto& by_stage = prediction.recompute_by_stage) {
    json["recompute_stages"] = by_stage->stages;
    if (prediction.timed() && by_stage->seconds_alike)
      json["recompute_alike_seconds"] = *by_stage->seconds_alike;
  }
  if (!prediction.recompute) return;
  const RecomputeGain& gain = *prediction.recompute;
  json["recompute_frees_bytes"] = gain.peak_without - prediction.fullest().memory.peak;
  if (prediction.timed())
    json["recompute_costs_seconds"] = prediction.step_seconds - gain.seconds_without;
}

std::string recompute_alike_text(const Prediction& prediction) {
  if (!prediction.timed() || !prediction.recompute_by_stage ||
      !prediction.recompute_by_stage->seconds_alike)
    return "";
  return fmt::format("; the same on all stages: {} a step instead of {}",
                     duration_text(*prediction.recompute_by_stage->seconds_alike),
                     duration_text(prediction.step_seconds));
}

std::string recompute_note(const Plan& plan, const Prediction& prediction) {
  const std::string text = waste_of("recompute", prediction.recompute, plan, prediction);
  return text.empty() ? "" : text + "; write recompute = \"none\" to do without it";
}

std::string slices_note(const Plan& plan, const Prediction& prediction) {
  const std::string text = waste_of("coshard", prediction.slices, plan, prediction);
  return text.empty() ? "" : text + "; leave coshard out of the plan to do without it";
}

}  // namespace mw
