// The moves of views, worked out once for each pair of layouts, of which a model's layers have few.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "meshwright/error.h"
#include "plan/derive.h"

namespace mw {

class ViewMoves {
 public:
  // Keeps references to all arguments. `layouts`: by value, complete before the first call of of().
  ViewMoves(const Graph& graph, const Mesh& mesh, const std::vector<Layout>& layouts,
            Problems& problems)
      : graph_(graph), mesh_(mesh), layouts_(layouts), problems_(problems) {}

  // The moves of a value from one layout to the other; none, and a problem, where rows of a sparse
  // one have no way there.
  View::Moves of(int value, const Layout& from, const Layout& to);

 private:
  std::vector<Move> exchange(int value, const Layout& from, const Layout& to);
  // How the rows of the value's layer lie where they are made, by cells of the sparse dims.
  const Layout& home(int value);
  // The layout with its cuts of sparse dims alone.
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
  std::map<int, Layout> homes_;  // by layer: the result of home()
  std::set<int> said_;           // values whose missing moves were refused already
};

}  // namespace mw
