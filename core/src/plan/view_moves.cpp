// Finds a view's moves, and refuses rows that cannot be exchanged.
#include "plan/view_moves.h"

#include <fmt/format.h>

#include <stdexcept>

namespace mw {

const View::Moves& View::none() {
  static const Moves none = std::make_shared<const std::vector<Move>>();
  return none;
}

Layout ViewMoves::cells(const Layout& layout) const {
  Layout cells = layout;
  for (Placement& p : cells) {
    if (!p.is_shard() || !contains(graph_.sparse.dims, p.dim)) p = Placement::replicate();
  }
  return cells;
}

const Layout& ViewMoves::home(int value) {
  const int layer = graph_.ops()[graph_.value(value).producer].layer;
  const auto [known, missing] = homes_.try_emplace(layer);
  if (!missing) return known->second;
  for (const Op& op : graph_.ops()) {
    if (op.layer != layer) continue;
    for (const int output : op.outputs) {
      if (!graph_.sparse.has(graph_.value(output).dims)) continue;
      // the layer's first op with sparse output makes the rows
      return known->second = cells(layouts_[output]);
    }
  }
  return known->second;
}

// Rows go out from where they are made, and back there: no rank knows how many would go any other
// way.
std::vector<Move> ViewMoves::exchange(int value, const Layout& from, const Layout& to) {
  // An index says which of its maker's own tokens a row is of: other ranks have other tokens.
  if (graph_.value(value).scalar == Scalar::index)
    throw std::invalid_argument("no exchange of indices");
  const Layout before = cells(from), after = cells(to);
  const Dim group = graph_.sparse.dims.front();
  std::vector<Move> list = sparse_moves(from, to, group);
  for (const Move& move : list) {
    if (!move.exchanges_rows()) continue;
    if ((move.to == group ? before : after) != home(value))
      throw std::invalid_argument("no exchange but from where rows are made, and back");
  }
  return list;
}

View::Moves ViewMoves::of(int value, const Layout& from, const Layout& to) {
  if (from == to) return View::none();
  const Value& moved = graph_.value(value);
  if (graph_.sparse.has(moved.dims)) {
    try {
      return std::make_shared<const std::vector<Move>>(exchange(value, from, to));
    } catch (const std::invalid_argument&) {
      if (said_.insert(value).second) {
        problems_.add(
            Stage::plan, "rule.rows", "",
            fmt::format(
                "{}: tokens that were sent to experts have the placement {}, and {} is needed",
                moved.name, to_string(from, mesh_), to_string(to, mesh_)),
            "cut the ops that make and combine them like the experts, or along tokens");
      }
      return View::none();
    }
  }
  for (const Known& known : known_) {
    if (known.from == from && known.to == to) return known.moves;
  }
  known_.push_back({from, to, std::make_shared<const std::vector<Move>>(moves(from, to, mesh_))});
  return known_.back().moves;
}

}  // namespace mw
