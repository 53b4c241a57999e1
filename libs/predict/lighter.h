// Plans in which strategies do what they say would let a rank hold less, for the search for a plan
// that fits memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/run_request.h"

namespace mw {

// A plan's strategies, one of them changed, put in another's place, or added.
struct LighterPlan {
  std::vector<StrategyChoice> strategies;
  std::string what;  // Lighter's, as is
  bool drastic = false;
};

// What one strategy can do: the mildest first. Each is of the plan's number of ranks, unless it is
// drastic; those start from the last of the mild ones.
struct LighterFamily {
  std::vector<LighterPlan> mild, drastic;
};

// The families of each strategy of the plan that has lighter variants, in the plan's order; of one
// that says none, those of the strategies on the plugin path that split the same, over as many
// ranks (of data parallelism that keeps all on each rank, those that keep parts).
std::vector<LighterFamily> lighter_families(const StrategySource& source,
                                            const std::vector<StrategyChoice>& strategies);

// The plan with an axis of data added, of so many ways: by each strategy on the plugin path that
// has lighter variants, as the lightest of its mild ones.
std::vector<LighterPlan> with_data_axis(const StrategySource& source,
                                        const std::vector<StrategyChoice>& strategies, int ways);

// The strategy with the axes that it asks for. Throws Error if it cannot be asked.
StrategyChoice with_axes(StrategyChoice choice);
// Makes the strategy of an entry, { plugin = "tp", ways = 4 }, with its axes. Nothing: the entry
// names no strategy, or its options are refused.
std::optional<StrategyChoice> strategy_of(const StrategySource& source, const Json& entry);

// As a script has them: "{ pp { 4, layout = "auto" }, tp(8) }", as they were written, with the
// options that tell lighter variants apart.
std::string script_text(const std::vector<StrategyChoice>& strategies);

// Whether an axis of the strategy with ranks of its own has the role. Its axes are known.
bool splits(const StrategyChoice& choice, Role role);

// What the strategy says that it could do; nothing if it cannot be asked.
std::vector<Lighter> lighter_of(const StrategyChoice& choice);

}  // namespace mw
