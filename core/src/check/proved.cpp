// Proves plans, and finds the pass without which a plan could be proved.
#include "check/proved.h"

#include <fmt/format.h>

namespace mw {
namespace {

// Whether the plan's programs with so many of its passes can be proved.
bool proves_with(const Plan& plan, int passes, const ProveOptions& options) {
  PlanRequest request = plan.request;
  request.schedule = plan.schedule;
  request.first_passes = passes;
  Problems problems;
  try {
    const auto made = make_plan(request, problems);
    return made && problems.empty() && prove(made->programs, options).proved();
  } catch (const Error&) {
    return false;
  }
}

// The first pass with which the plan cannot be proved; null: it cannot without any.
const PassRun* culprit(const Plan& plan, const ProveOptions& options) {
  const int all = static_cast<int>(plan.passes.size());
  if (all == 0 || !proves_with(plan, 0, options)) return nullptr;
  int passes = 1;
  while (passes < all && proves_with(plan, passes, options)) ++passes;
  return &plan.passes[passes - 1];
}

}  // namespace

Proof prove_plan(const Plan& plan, const ProveOptions& options) {
  Proof proof = prove(plan.programs, options);
  if (proof.proved()) return proof;
  const PassRun* pass = culprit(plan, options);
  if (pass == nullptr) return proof;
  for (Refusal& refusal : proof.refusals) {
    refusal.key = pass->place;
    refusal.by = fmt::format("the pass \"{}\"", pass->name);
    if (!pass->strategy.empty()) refusal.by += " of " + pass->strategy;
    if (!pass->place.empty()) refusal.by += fmt::format(" ({})", pass->place);
  }
  return proof;
}

void check_proved(const Plan& plan, Problems& problems) {
  for (const Refusal& refusal : prove_plan(plan).refusals) problems.add(refusal.problem());
}

}  // namespace mw
