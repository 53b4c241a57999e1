// From rules to placements: which dim each op computes in parts, how every value lies on the mesh,
// and the redistributions that this makes necessary, forward and backward.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/graph.h"
#include "meshwright/program.h"
#include "meshwright/strategy.h"

namespace mw {

// A value as some ops need it. Ops with equal needs share the view: q, k and v cause one all-gather
// forward and one reduction backward.
struct View {
  int value = -1;
  Layout need;      // layout of the operand
  Layout gradient;  // layout of the gradient that the ops leave
  // Shared by all views of like layouts, and never null.
  using Moves = std::shared_ptr<const std::vector<Move>>;
  Moves forward = none();   // value's layout -> need
  Moves backward = none();  // gradient -> the value's gradient layout
  static const Moves& none();
};

// A problem of a strategy's number of ways, and other numbers that would mend it, which the rest of
// the plan may not take: the nearest first, below, then above (Problem::hint lists them).
struct WrongWays {
  std::string strategy;
  std::size_t problem = 0;  // index of the problem among those that were added
  std::vector<int> below, above;
  bool all = false;  // the hint lists all that are possible, not the nearest
};

struct Derived {
  std::vector<Layout> cut;                // for each op: its iteration space on the mesh
  std::vector<Layout> follow;             // for each op: the dim that follows the cut one, if any
  std::vector<std::vector<int>> view_of;  // for each op and input: index into views
  std::vector<View> views;
  std::vector<Layout> layout;         // for each value: how it lies (parameters: stored)
  std::map<int, Rotation> rotations;  // by op, if it runs in ring steps
  std::vector<WrongWays> wrong_ways;  // problems that other ways may mend
  int placed = 0;  // ops whose placement was worked out; that of like ops was taken over
};

// The layout in which a value's gradient must end: Shard stays, all else is Replicate.
Layout gradient_layout(const Layout& value);

// Adds to `problems` what is wrong: dims that do not divide, strategies that claim the same axis of
// an op with equal right. The result is complete only if none was added. Throws what a rule's
// `where` throws.
Derived derive(const Graph& graph, const Mesh& mesh, const std::vector<Rule>& rules,
               const std::vector<StorageRule>& storage, Problems& problems,
               const std::vector<RotationRule>& rotations = {});

}  // namespace mw
