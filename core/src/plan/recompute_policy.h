// Which activations backward makes again, as a script says it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/recompute.h"
#include "plan/op_choice.h"
#include "plan/recompute.h"

namespace mw {

struct RecomputePolicy {
  enum class Kind : std::uint8_t { none, selective, full, ops, function, fit, fixed, registered };
  Kind kind = Kind::none;
  int every = 1;                 // full: layers between what is kept
  std::vector<std::string> ops;  // kinds of ops, or parts of their names
  OpPredicate what;
  Json settings;                  // registered: its kind and options
  bool keep_collectives = false;  // what they brought is kept, not fetched again
  bool gathers = false;           // what all-gathers brought is not
  std::int64_t fit = 0;           // bytes a rank may hold; the cheapest set that does
  RecomputeSet set;               // fixed: resolved already
  std::string note;               // for the printed plan
  // For the plan's description.
  Json describe() const;
};

inline constexpr const char* recompute_doc =
    "activations that backward makes again: \"none\", \"selective\" (attention), \"full\", "
    "{ every = n }, { ops = { … } }, { fit = \"8GiB\" }, a plugin's policy, or a function of an op";

// "none", "selective", "full", { every = n }, { ops = { "attention", "mlp" } }, { fit = "8GiB" }, a
// function of an op, or a policy that a plugin registered, by name or as a table; a table may also
// say { what = "selective" } and collectives = "keep" or gathers = true.
RecomputePolicy read_recompute(const Json& given, std::shared_ptr<const ScriptReach> reach,
                               Problems& problems);

// The ops of the graph that it takes, of the layers only; not for `fit`.
// Adds a problem where a name fits nothing.
RecomputeSet resolve(const RecomputePolicy& policy, const Graph& graph, Problems& problems);

}  // namespace mw
