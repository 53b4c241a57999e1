// Variants of a plan in which a rank holds less memory, as the plan's strategies offer them
// (Lighter), for the search for a plan that fits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/run_request.h"

namespace mw {

// A plan's strategies, of which one was changed, put in another's place, or added.
struct LighterPlan {
  std::vector<StrategyChoice> strategies;
  std::string what;  // name of the change (Lighter::what)
  bool drastic = false;
};

// The lighter variants of one strategy, the mildest first. Mild variants have the plan's number of
// ranks. Drastic ones may have more, and start from the last mild one.
struct LighterFamily {
  std::vector<LighterPlan> mild, drastic;
};

// The families of each strategy of the plan that has lighter variants, in the plan's order. For a
// strategy that has none: the families of the strategies on the plugin path that split the same
// thing over as many ranks (for data parallelism that keeps all state on each rank, those that keep
// shards).
std::vector<LighterFamily> lighter_families(const StrategySource& source,
                                            const std::vector<StrategyChoice>& strategies);

// The plan with an added axis of data parallelism of `ways` ranks: one plan for each strategy on
// the plugin path that has lighter variants, in the lightest of its mild variants.
std::vector<LighterPlan> with_data_axis(const StrategySource& source,
                                        const std::vector<StrategyChoice>& strategies, int ways);

// The strategy with `axes` set to what the plugin asks for. Throws Error if the plugin fails.
StrategyChoice with_axes(StrategyChoice choice);
// Makes the strategy of an entry, { plugin = "tp", ways = 4 }, with its axes. Nothing: the entry
// names no strategy, or its options are refused.
std::optional<StrategyChoice> strategy_of(const StrategySource& source, const Json& entry);

// The strategies as a script writes them: "{ pp { 4, layout = "auto" }, tp(8) }", with the options
// that were written and those that tell lighter variants apart.
std::string script_text(const std::vector<StrategyChoice>& strategies);

// Whether the strategy has an axis of this role with ranks of its own, not borrowed ones. `axes` of
// the choice must be set.
bool splits(const StrategyChoice& choice, Role role);

// The lighter variants that the strategy offers; none if the plugin fails.
std::vector<Lighter> lighter_of(const StrategyChoice& choice);

}  // namespace mw
