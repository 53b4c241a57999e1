// The keys `recompute` and `offload`, as a script writes them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "meshwright/engine/activations.h"
#include "meshwright/options.h"

namespace mw {

// The limit that recompute = "fit" keeps to where it says no bytes itself.
struct MemoryLimit {
  std::int64_t bytes = 0;  // bytes that a rank may hold; 0: not given
  bool device = false;     // leave room for what the device holds beside the program
};

// `recompute`: "none", "selective", "full", "fit", { every = n }, { ops = { "attention", "mlp" } },
// { fit = "8GiB" }, a function of an op, or a policy that a plugin registered, by name or as a
// table; a table may also say { what = "selective" } and collectives = "keep" or gathers = true.
RecomputePolicy read_recompute(const Json& given, std::shared_ptr<const ScriptReach> reach,
                               const std::function<MemoryLimit()>& memory, Problems& problems);

// `offload`: "none", "full", { layers = n }, { ops = { "attention", "mlp" } }, a function of an op;
// a table may also say least = "64KiB" and prefetch = n, and without layers and ops means "full".
OffloadPolicy read_offload(const Json& given, std::shared_ptr<const ScriptReach> reach,
                           Problems& problems);

}  // namespace mw
