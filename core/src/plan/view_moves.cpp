// Finds a view's moves, and refuses rows that cannot be exchanged.
#include "plan/view_moves.h"

#include <fmt/format.h>

#include <stdexcept>

namespace mw {

const View::Moves& View::none() {
  static const Moves none = std::make_shared<const std::vector<Move>>();
  return none;
}

View::Moves ViewMoves::of(int value, const Layout& from, const Layout& to) {
  if (from == to) return View::none();
  const Value& moved = graph_.value(value);
  if (graph_.sparse.has(moved.dims)) {
    try {
      // Such an index tells which of the tokens that its maker has a row is of; others have others.
      if (moved.scalar == Scalar::index) throw std::invalid_argument("no exchange of indices");
      return std::make_shared<const std::vector<Move>>(
          sparse_moves(from, to, graph_.sparse.dims.front()));
    } catch (const std::invalid_argument&) {
      if (said_.insert(value).second) {
        problems_.add(Stage::plan, "rule.rows", "",
                      fmt::format("{}: tokens that chose experts lie as {} and are needed as {}",
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
