// Compares the measured step with the predicted one, and names what the prediction does not know
// of: other programs on the cores, more ranks than cores, a machine that is not calibrated.
#include "common/parting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

// The relative difference up to which a measured step needs no explanation.
constexpr double near = 0.1;

}  // namespace

Json Parting::to_json() const {
  return {{"share", number_or_null(share)}, {"why", why}, {"text", text}};
}

Parting parting_of(const RunTiming& measured, const PredictedStep& predicted) {
  Parting made;
  if (!(measured.seconds > 0) || !(predicted.seconds > 0)) return made;
  made.share = measured.seconds / predicted.seconds - 1;
  const double away = std::abs(made.share);
  if (away <= std::max(near, predicted.error)) {
    made.text = fmt::format("measured within {:.0f} % of the predicted step",
                            std::max(1.0, std::ceil(100 * away)));
    return made;
  }
  made.explained = false;
  std::vector<std::string> reasons;
  if (const std::string busy = disturbance_text(measured); !busy.empty() && made.share > 0) {
    made.why.emplace_back("busy");
    reasons.push_back(busy);
  }
  if (std::isnan(measured.use.others) && made.share > 0) {
    made.why.emplace_back("others_unknown");
    reasons.emplace_back("what other programs used of the cores is not known here");
  }
  if (predicted.ranks > measured.cores) {
    made.why.emplace_back("fewer_cores");
    reasons.push_back(fmt::format("{} share {}, and predictions are less accurate then",
                                  plural(predicted.ranks, "rank"), plural(measured.cores, "core")));
  }
  if (predicted.error <= 0) {
    made.why.emplace_back("not_calibrated");
    reasons.emplace_back(
        "this machine is not calibrated, or was so while other programs used it (meshwright "
        "calibrate)");
  }
  made.text = fmt::format(
      "measured {:.0f} % {} than predicted{}", 100 * away, made.share > 0 ? "longer" : "shorter",
      reasons.empty() ? ", and nothing that is known explains it" : ": " + join(reasons, "; "));
  return made;
}

Parting parting_of(const Json& result, const Json& predicted) {
  PredictedStep step;
  step.seconds = number_under(predicted, "step_seconds");
  if (const double error = number_under(predicted, "step_error"); error > 0) step.error = error;
  if (const double ranks = number_under(predicted, "ranks"); ranks >= 1 && ranks < 1e9)
    step.ranks = static_cast<int>(ranks);
  return parting_of(read_timing(result), step);
}

}  // namespace mw
