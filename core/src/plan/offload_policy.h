// Which activations lie in host memory between forward and backward, as a script says it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/offload.h"
#include "plan/op_choice.h"

namespace mw {

struct OffloadPolicy {
  enum class Kind : std::uint8_t { none, full, layers, ops, function };
  Kind kind = Kind::none;
  int layers = 0;                // the first of each virtual stage
  std::vector<std::string> ops;  // kinds of ops, or parts of their names
  OpPredicate what;
  std::int64_t least = 0;  // bytes; smaller tensors stay
  int prefetch = 0;        // layers
  // For the plan's description.
  Json describe() const;
};

inline constexpr const char* offload_doc =
    "activations that lie in host memory until backward reads them: \"none\", \"full\", "
    "{ layers = n }, { ops = { … } }, or a function of an op";

// "none", "full", { layers = n }, { ops = { "attention", "mlp" } }, a function of an op; a table
// may also say least = "64KiB" and prefetch = n, and with these alone takes all.
OffloadPolicy read_offload(const Json& given, std::shared_ptr<const ScriptReach> reach,
                           Problems& problems);

// Adds a problem where a name fits nothing, or the model has fewer layers.
OffloadSet resolve(const OffloadPolicy& policy, const Graph& graph, Problems& problems);

}  // namespace mw
