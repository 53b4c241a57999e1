// Predicts a plan without its recompute, and says so where that would hold no more.
#include "predict/recompute_gain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "predict/fit.h"

namespace mw {
namespace {

constexpr double most_work_for_a_note = 1e6;  // about the microseconds that another plan may take
constexpr double little = 0.01;               // of the peak without recompute

bool recomputes(const RecomputePolicy& policy) {
  return (policy.kind != RecomputePolicy::Kind::none || policy.gathers) && policy.fit == 0;
}

// A backward in two pieces keeps what is made again until the second, W.
bool splits_backward(const Plan& plan) {
  return std::any_of(plan.programs.begin(), plan.programs.end(), [](const Program& program) {
    return std::any_of(
        program.segments.begin(), program.segments.end(), [](const Segment& segment) {
          return segment.kind == SegmentKind::wgrad ||
                 std::any_of(segment.lanes.begin(), segment.lanes.end(),
                             [](const Lane& lane) { return lane.kind == SegmentKind::wgrad; });
        });
  });
}

void weigh_stages(const Plan& plan, const Machine& machine, int threads, Prediction& prediction) {
  const RecomputePolicy& policy = plan.request.recompute;
  if (policy.kind != RecomputePolicy::Kind::fixed || !policy.settings.contains("stages")) return;
  prediction.recompute_by_stage = RecomputeByStage{policy.settings["stages"], std::nullopt};
  if (plan.work > most_work_for_a_note) return;
  if (const auto alike = with_recompute_alike(plan))
    prediction.recompute_by_stage->seconds_alike = predict(*alike, machine, threads).step_seconds;
}

}  // namespace

void weigh_recompute(const Plan& plan, const Machine& machine, int threads,
                     Prediction& prediction) {
  weigh_stages(plan, machine, threads, prediction);
  if (!recomputes(plan.request.recompute) || plan.work > most_work_for_a_note) return;
  PlanRequest request = plan.request;
  request.recompute = {};
  const auto without = plan_if_possible(request);
  if (!without) return;
  const Prediction other = predict(*without, machine, threads);
  prediction.recompute = RecomputeGain{other.fullest().memory.peak, other.step_seconds};
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
  if (!prediction.recompute) return "";
  const RecomputeGain& gain = *prediction.recompute;
  const std::int64_t peak = prediction.fullest().memory.peak, freed = gain.peak_without - peak;
  if (static_cast<double>(freed) >= little * static_cast<double>(gain.peak_without)) return "";
  const auto bytes = [](std::int64_t count) { return format_bytes(static_cast<double>(count)); };
  std::string text = freed > 0
                         ? fmt::format("recompute frees {} of the fullest rank's {}", bytes(freed),
                                       bytes(gain.peak_without))
                         : fmt::format(
                               "recompute frees nothing: the fullest rank holds {} with it and {} "
                               "without",
                               bytes(peak), bytes(gain.peak_without));
  if (prediction.timed() && gain.seconds_without > 0) {
    const double more = prediction.step_seconds / gain.seconds_without - 1;
    text += fmt::format(", and a step takes {:.0f} % {}", 100 * std::abs(more),
                        more < 0 ? "less time" : "longer");
  }
  if (splits_backward(plan))
    text +=
        "; this schedule has its backward in two pieces, I and W, and keeps what is made again for "
        "I until W";
  return text + "; write recompute = \"none\" to do without it";
}

}  // namespace mw
