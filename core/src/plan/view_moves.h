// The moves of views, worked out once for each pair of layouts: a model's layers ask for few.
#pragma once

#include <set>
#include <vector>

#include "meshwright/error.h"
#include "plan/derive.h"

namespace mw {

class ViewMoves {
 public:
  // Keeps references to all of them.
  ViewMoves(const Graph& graph, const Mesh& mesh, Problems& problems)
      : graph_(graph), mesh_(mesh), problems_(problems) {}

  // Of a value from one layout to the other; none, and a problem, where rows of a sparse one have
  // no way there.
  View::Moves of(int value, const Layout& from, const Layout& to);

 private:
  struct Known {
    Layout from, to;
    View::Moves moves;
  };
  const Graph& graph_;
  const Mesh& mesh_;
  Problems& problems_;
  std::vector<Known> known_;
  std::set<int> said_;  // values that have no way
};

}  // namespace mw
