// The moves of views, worked out once for each pair of layouts: a model's layers ask for few.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "meshwright/error.h"
#include "plan/derive.h"

namespace mw {

class ViewMoves {
 public:
  // Keeps references to all of them. `layouts`: of values, known by the time of the first call.
  ViewMoves(const Graph& graph, const Mesh& mesh, const std::vector<Layout>& layouts,
            Problems& problems)
      : graph_(graph), mesh_(mesh), layouts_(layouts), problems_(problems) {}

  // The moves of a value from one layout to the other; none, and a problem, where rows of a sparse
  // one have no way there.
  View::Moves of(int value, const Layout& from, const Layout& to);

 private:
  std::vector<Move> exchange(int value, const Layout& from, const Layout& to);
  // By which cells of the sparse dims the rows of the value's layer lie where they are made.
  const Layout& home(int value);
  Layout cells(const Layout& layout) const;

  struct Known {
    Layout from, to;
    View::Moves moves;
  };
  const Graph& graph_;
  const Mesh& mesh_;
  const std::vector<Layout>& layouts_;
  Problems& problems_;
  std::vector<Known> known_;
  std::map<int, Layout> homes_;  // of layers
  std::set<int> said_;           // values that have no way
};

}  // namespace mw
