// Fits a described cluster and its stack to steps that were measured there.
#pragma once

#include <memory>
#include <vector>

#include "meshwright/engine/plan.h"
#include "predict/link_fit.h"
#include "predict/share_fit.h"

namespace mw {

// A step that was measured, on so many of the cluster's nodes.
struct MeasuredPlan {
  std::shared_ptr<const Plan> plan;
  int nodes = 1;
  double seconds = 0;
};

struct FittedSteps {
  std::vector<Share> shares;  // with what they were before
  FittedShares fit;
  std::vector<double> before;  // seconds of each step by the shares as they were
};

// Puts into both descriptions the shares with which the steps come out best: of the device what
// products and streams reach, of a node what collectives keep within a step, of the stack what the
// host takes and what data axes get of the NICs. Plans fit the descriptions, and stay as they are.
FittedSteps fit_steps(Description& cluster, Description& stack,
                      const std::vector<MeasuredPlan>& steps, Problems& problems);

}  // namespace mw
