// Refuses cuts that cannot be: two strategies with equal right to an op's axis, dims that do not
// divide. Each is said once, whatever the ops.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/graph.h"
#include "meshwright/strategy.h"
#include "plan/derive.h"

namespace mw {

class CutChecks {
 public:
  // Keeps references to all of them.
  CutChecks(const Graph& graph, const Mesh& mesh, Problems& problems,
            std::vector<WrongWays>& wrong_ways)
      : graph_(graph), mesh_(mesh), problems_(problems), wrong_ways_(wrong_ways) {}

  void clash(const Op& op, const Rule& a, const Rule& b, int atom);
  // Of the rule's dim, which `cut` cuts.
  void even(const Layout& cut, const Rule& rule);

 private:
  const Graph& graph_;
  const Mesh& mesh_;
  Problems& problems_;
  std::vector<WrongWays>& wrong_ways_;
  std::set<std::string> said_;
  std::set<Dim> at_fault_;  // dims that some strategy cannot split
};

}  // namespace mw
