// Policies of a script that choose the activations which backward recomputes, or which wait in host
// memory for backward. A policy becomes a set of ops of a graph. It selects ops of layers only, not
// the embedding, the head or the loss.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/graph.h"
#include "meshwright/json.h"

namespace mw {

struct Plan;
struct PlanRequest;

using OpPredicate = std::function<bool(const Op&)>;

bool in_layers(const Op& op, const Graph& graph);

struct RecomputeSet {
  std::vector<bool> ops;    // for each op of the graph: whether its outputs are recomputed
  int every = 1;            // layers that are recomputed as one block; the block's inputs are kept
  bool keep_moves = false;  // results of collectives are kept, instead of communicated again
  // Results of all-gathers of activations are never kept, whoever reads them (Korthikanti et al.
  // 2022, section 4.2.2: a linear reads its whole input, but its backward can gather the shards
  // again).
  bool gathers = false;
  bool any() const;
};

struct RecomputePolicy {
  enum class Kind : std::uint8_t { none, selective, full, ops, function, fit, fixed, registered };
  Kind kind = Kind::none;
  int every = 1;                 // full: RecomputeSet::every
  std::vector<std::string> ops;  // ops: kinds of ops, or parts of their names
  OpPredicate what;              // function, registered: whether an op is recomputed
  // registered: the policy's name and options; fixed, found by a search: the choice for each stage.
  Json settings;
  bool keep_collectives = false;  // RecomputeSet::keep_moves
  bool gathers = false;           // RecomputeSet::gathers
  // fit: bytes that a rank may hold. `search` finds the cheapest set of ops with which a rank holds
  // no more, and returns the plan with it, whose policy is `fixed`; null, and a problem, if no set
  // suffices.
  std::int64_t fit = 0;
  bool offload = false;  // fit: tensors may go to host memory instead, if that is faster
  std::shared_ptr<const Plan> (*search)(const PlanRequest&, Problems&) = nullptr;
  RecomputeSet set;  // fixed: the set itself
  std::string note;  // a sentence for the printed plan
  // The policy as the plan's description has it.
  Json describe() const;
};

struct OffloadSet {
  std::vector<bool> ops;   // for each op of the graph: whether what its backward reads is offloaded
  int layers = 0;          // offloads only in the first layers of each virtual stage; 0: in all
  std::int64_t least = 0;  // least bytes of an offloaded tensor; smaller tensors stay
  int prefetch = 0;        // how many layers before its own a tensor is back on the device
  // Further tensors to offload, by the names of their slots: "layers.3.attention.q".
  std::set<std::string> tensors;
  bool any() const;
};

struct OffloadPolicy {
  enum class Kind : std::uint8_t { none, full, layers, ops, function, fixed };
  Kind kind = Kind::none;
  OffloadSet set;                // fixed: the set itself
  int layers = 0;                // layers: how many, the first ones of each virtual stage
  std::vector<std::string> ops;  // ops: kinds of ops, or parts of their names
  OpPredicate what;              // function: whether an op is chosen
  std::int64_t least = 0;        // OffloadSet::least, in bytes
  int prefetch = 0;              // OffloadSet::prefetch, in layers
  // The policy as the plan's description has it.
  Json describe() const;
};

// Selects the ops of layers that a policy names; none for the kind `fit`. Adds a problem if a name
// of the policy is neither the kind of an op nor a part of its name between dots ("attention",
// "mlp"), with the kinds that there are, or if the model has fewer layers than the policy says.
RecomputeSet resolve(const RecomputePolicy& policy, const Graph& graph, Problems& problems);
OffloadSet resolve(const OffloadPolicy& policy, const Graph& graph, Problems& problems);

}  // namespace mw
