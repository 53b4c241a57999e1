// Says which activations backward recomputes, and which lie in host memory until backward reads
// them: the choice of a script, and the ops of a graph that follow from it. Only ops of layers can
// be chosen, not the embedding, nor the head and the loss.
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
  std::vector<bool> ops;    // of the graph: whether what it makes is made again
  int every = 1;            // layers between what is kept
  bool keep_moves = false;  // what a collective brought is kept, not fetched again
  // What an all-gather of activations brought is never kept, whoever reads it (Korthikanti et al.
  // 2022, section 4.2.2: of what a linear reads whole, its backward needs the parts alone).
  bool gathers = false;
  bool any() const;
};

struct RecomputePolicy {
  enum class Kind : std::uint8_t { none, selective, full, ops, function, fit, fixed, registered };
  Kind kind = Kind::none;
  int every = 1;                 // full: layers between what is kept
  std::vector<std::string> ops;  // kinds of ops, or parts of their names
  OpPredicate what;
  Json settings;                  // registered: its kind and options; fit: what each stage has
  bool keep_collectives = false;  // what they brought is kept, not fetched again
  bool gathers = false;           // what all-gathers brought is not
  // fit: bytes a rank may hold, and what finds the cheapest set with which it does. It makes plans
  // of the kind `fixed`; null, and a problem, if there is no such set.
  std::int64_t fit = 0;
  bool offload = false;  // fit: tensors may go to host memory instead, where that is the faster way
  std::shared_ptr<const Plan> (*search)(const PlanRequest&, Problems&) = nullptr;
  RecomputeSet set;  // fixed: resolved already
  std::string note;  // for the printed plan
  // Describes it in the plan's description.
  Json describe() const;
};

struct OffloadSet {
  std::vector<bool> ops;   // of the graph: those whose backward fetches what it reads
  int layers = 0;          // only in the first layers of each virtual stage; 0: in all
  std::int64_t least = 0;  // bytes of a tensor; smaller ones stay
  int prefetch = 0;        // layers of backward by which a tensor is back ahead of its own
  // Tensors that go one by one, whoever reads them, by their slots' names: "layers.3.attention.q".
  std::set<std::string> tensors;
  bool any() const;
};

struct OffloadPolicy {
  enum class Kind : std::uint8_t { none, full, layers, ops, function, fixed };
  Kind kind = Kind::none;
  OffloadSet set;                // fixed: resolved already
  int layers = 0;                // the first of each virtual stage
  std::vector<std::string> ops;  // kinds of ops, or parts of their names
  OpPredicate what;
  std::int64_t least = 0;  // bytes; smaller tensors stay
  int prefetch = 0;        // layers
  // Describes it in the plan's description.
  Json describe() const;
};

// The ops of the graph that a policy takes, of the layers only; of the kind `fit`, none. Adds a
// problem where a name is neither an op's kind nor a part of its name between dots ("attention",
// "mlp"), with the kinds that there are, or where the model has fewer layers than the policy says.
RecomputeSet resolve(const RecomputePolicy& policy, const Graph& graph, Problems& problems);
OffloadSet resolve(const OffloadPolicy& policy, const Graph& graph, Problems& problems);

}  // namespace mw
