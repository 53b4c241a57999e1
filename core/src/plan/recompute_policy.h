// Which activations backward makes again, as a script says it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/options.h"
#include "plan/recompute.h"

namespace mw {

struct RecomputePolicy {
  enum class Kind : std::uint8_t { none, selective, full, ops, function, fit, fixed };
  Kind kind = Kind::none;
  int every = 1;                 // full: layers between what is kept
  std::vector<std::string> ops;  // kinds of ops, or parts of their names
  std::function<bool(const Op&)> what;
  bool keep_collectives = false;  // what they brought is kept, not fetched again
  std::int64_t fit = 0;           // bytes a rank may hold; the cheapest set that does
  RecomputeSet set;               // fixed: resolved already
  std::string note;               // for the printed plan
  // For the plan's description.
  Json describe() const;
};

// "none", "selective", "full", { every = n }, { ops = { "attention", "mlp" } }, { fit = "8GiB" }, a function of an
// op; a table may also say collectives = "keep".
RecomputePolicy read_recompute(const Json& given, std::shared_ptr<const ScriptReach> reach,
                               Problems& problems);

// Only these may be made again: not the embedding, nor the head and the loss.
bool in_layers(const Op& op, const Graph& graph);

// The ops of the graph that it takes, of the layers only; not for `fit`. Adds a problem where a name fits nothing.
RecomputeSet resolve(const RecomputePolicy& policy, const Graph& graph, Problems& problems);

}  // namespace mw
