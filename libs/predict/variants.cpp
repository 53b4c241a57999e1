// Plans and prices changed copies of a request.
#include "predict/variants.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/mix.h"
#include "meshwright/engine/text.h"
#include "predict/lighter.h"

namespace mw {

std::shared_ptr<const Plan> plan_if_possible(const PlanRequest& request, Problems* problems,
                                             const PlanMaker& make) {
  Problems none;
  return unless_refused([&] { return make(request, problems ? *problems : none); }, problems);
}

std::string Settings::text() const {
  std::vector<std::string> parts;
  if (!plan.empty()) parts.push_back("plan = " + plan);
  if (microbatch > 0) parts.push_back(fmt::format("microbatch = {}", microbatch));
  if (!recompute.empty()) parts.push_back("recompute = " + recompute);
  if (!offload.empty()) parts.push_back("offload = " + offload);
  return join(parts);
}

PlanRequest Change::of(PlanRequest request) const {
  if (strategies != nullptr) {
    request.strategies = *strategies;
    request.stage_layers.clear();  // they belong to the stages that the plan has now
  }
  if (microbatch > 0) {
    request.microbatch = microbatch;
    request.sizes.clear();
    request.smaller_batches = false;
  }
  if (!recompute.empty()) {
    request.recompute = {};
    request.recompute.kind =
        recompute == "full" ? RecomputePolicy::Kind::full : RecomputePolicy::Kind::selective;
  }
  return request;
}

std::string Change::text(const PlanRequest& request) const {
  const bool functions = std::ranges::any_of(
      request.strategies, [](const StrategyChoice& one) { return holds_function(one.options); });
  return Settings{functions && strategies == nullptr ? "" : script_text(request.strategies),
                  microbatch,
                  recompute.empty() ? "" : quote(recompute),
                  {}}
      .text();
}

std::shared_ptr<const Plan> Variants::plan(const PlanRequest& request, const PlanMaker& make) {
  throw_if_stopped();
  auto plan = plan_if_possible(request, nullptr, make);
  work += plan ? plan->work : work_of_refused;
  ++tried;
  return plan;
}

void Variants::keep(Variant variant) {
  if (!lowest || variant.need < lowest->need) lowest = variant;
  if (!found && variant.need <= limit) found = std::move(variant);
}

}  // namespace mw
