#include <algorithm>

#include "meshwright/error.h"
#include "meshwright/program.h"

namespace mw {

bool communicates(Move::Kind kind) {
  return kind != Move::Kind::slice && kind != Move::Kind::keep;
}

const char* name_of(Move::Kind kind) {
  switch (kind) {
    case Move::Kind::all_reduce:
      return "all-reduce";
    case Move::Kind::reduce_scatter:
      return "reduce-scatter";
    case Move::Kind::all_gather:
      return "all-gather";
    case Move::Kind::all_to_all:
      return "all-to-all";
    case Move::Kind::slice:
      return "slice";
    case Move::Kind::keep:
      return "keep";
  }
  return "?";
}

Collective collective_of(Move::Kind kind) {
  switch (kind) {
    case Move::Kind::reduce_scatter:
      return Collective::reduce_scatter;
    case Move::Kind::all_gather:
      return Collective::all_gather;
    case Move::Kind::all_to_all:
      return Collective::all_to_all;
    default:
      return Collective::all_reduce;
  }
}

namespace {

// The move of one atom, its dims left to be merged with its neighbours'.
Move move_of(int atom, const Placement& from, const Placement& to) {
  using Kind = Move::Kind;
  Move move;
  move.atoms = {atom};
  if (from.is_partial()) {
    if (to.is_partial()) throw Error(Stage::plan, "a Partial cannot change its reduction");
    move.kind = to.is_replicate() ? Kind::all_reduce : Kind::reduce_scatter;
    move.reduction = from.reduction;
    move.to = to.dim;
  } else if (from.is_shard()) {
    if (to.is_partial()) {
      throw Error(Stage::plan, "a Shard cannot become Partial in one step",
                  "gather it first, then keep it on one rank");
    }
    move.kind = to.is_replicate() ? Kind::all_gather : Kind::all_to_all;
    move.from = from.dim;
    move.to = to.dim;
  } else {
    move.kind = to.is_shard() ? Kind::slice : Kind::keep;
    move.to = to.dim;
    move.reduction = to.reduction;
  }
  return move;
}

bool same_move(const Move& a, const Move& b) {
  return a.kind == b.kind && a.from == b.from && a.to == b.to && a.reduction == b.reduction;
}

}  // namespace

std::vector<Move> moves(const Layout& from, const Layout& to, const Mesh& mesh) {
  std::vector<Move> list;
  auto append = [&](int atom) {
    Move move = move_of(atom, from[atom], to[atom]);
    const bool adjacent = !list.empty() && same_move(list.back(), move) &&
                          std::abs(list.back().atoms.front() - atom) == 1;
    if (adjacent && move.kind != Move::Kind::all_to_all) {
      auto& atoms = list.back().atoms;
      atoms.insert(atom < atoms.front() ? atoms.begin() : atoms.end(), atom);
    } else {
      list.push_back(std::move(move));
    }
  };
  const int count = static_cast<int>(from.size());
  auto changes = [&](int a) { return from[a] != to[a] && mesh.atoms()[a].ways > 1; };
  for (int a = count - 1; a >= 0; --a) {
    if (changes(a) && !from[a].is_replicate()) append(a);
  }
  for (int a = 0; a < count; ++a) {
    if (changes(a) && from[a].is_replicate()) append(a);
  }
  return list;
}

}  // namespace mw
