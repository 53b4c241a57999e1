// Works out how to get from one layout to another: the collectives and slices, in an order in
// which nested cuts stay right.
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
    case Move::Kind::send:
      return "send";
    case Move::Kind::shift:
      return "shift";
    case Move::Kind::recv:
      return "recv";
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
    case Move::Kind::send:
    case Move::Kind::shift:
      return Collective::send;
    case Move::Kind::recv:
      return Collective::recv;
    default:
      return Collective::all_reduce;
  }
}

namespace {

// Atoms side by side that make the same change: they move together, as one group of ranks.
struct Unit {
  std::vector<int> atoms;
  Placement now, target;
  bool changes = false;
};

bool on(const Placement& place, Dim dim) {
  return place.is_shard() && place.dim == dim;
}

// Atoms that cut the same dim nest, the outer one first. So an atom can begin or cease to cut a dim
// only while no atom inside it cuts that dim.
class Mover {
 public:
  Mover(const Layout& from, const Layout& to, const Mesh& mesh) {
    for (std::size_t a = 0; a < from.size(); ++a) {
      if (mesh.atoms()[a].ways == 1) continue;
      const bool changes = from[a] != to[a];
      if (!units_.empty() && changes && units_.back().changes && units_.back().now == from[a] &&
          units_.back().target == to[a]) {
        units_.back().atoms.push_back(static_cast<int>(a));
      } else {
        units_.push_back({{static_cast<int>(a)}, from[a], to[a], changes});
      }
    }
  }

  std::vector<Move> run() {
    disturb();
    for (std::size_t u = 0; u < units_.size(); ++u) {  // sliced early, a tensor has less to move
      if (pending(u) && units_[u].now.is_replicate() && units_[u].target.is_shard() &&
          free_to_cut(u, units_[u].target.dim)) {
        step(u, units_[u].target);
      }
    }
    for (std::size_t u = units_.size(); u-- > 0;) {
      if (!pending(u) || units_[u].now.is_replicate()) continue;
      const bool direct = units_[u].now != units_[u].target && units_[u].target.is_shard() &&
                          free_to_cut(u, units_[u].target.dim);
      step(u, direct ? units_[u].target : Placement::replicate());
    }
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (pending(u)) step(u, units_[u].target);
    }
    return std::move(moves_);
  }

 private:
  // Marks units that must cease to cut a dim for a while, because a unit outside them begins or
  // ceases to cut it.
  void disturb() {
    for (bool more = true; more;) {
      more = false;
      for (std::size_t u = 0; u < units_.size(); ++u) {
        if (!units_[u].changes) continue;
        for (std::size_t inner = u + 1; inner < units_.size(); ++inner) {
          Unit& other = units_[inner];
          const bool shares = other.now.is_shard() && (on(units_[u].now, other.now.dim) ||
                                                       on(units_[u].target, other.now.dim));
          if (other.changes || !shares) continue;
          other.changes = more = true;
        }
      }
    }
  }

  bool pending(std::size_t u) const {
    return units_[u].changes && !(units_[u].now == units_[u].target && moved(u));
  }
  bool moved(std::size_t u) const { return moved_.size() > u && moved_[u]; }

  // Whether `u` may begin to cut `dim` now: nobody inside cuts it, and nobody outside is yet to
  // begin or cease.
  bool free_to_cut(std::size_t u, Dim dim) const {
    for (std::size_t other = 0; other < units_.size(); ++other) {
      if (other == u) continue;
      if (other > u && on(units_[other].now, dim)) return false;
      if (other < u && pending(other) &&
          (on(units_[other].now, dim) || on(units_[other].target, dim))) {
        return false;
      }
    }
    return true;
  }

  void step(std::size_t u, const Placement& to) {
    using Kind = Move::Kind;
    Unit& unit = units_[u];
    Move move;
    move.atoms = unit.atoms;
    if (unit.now.is_partial()) {
      move.kind = to.is_replicate() ? Kind::all_reduce : Kind::reduce_scatter;
      move.reduction = unit.now.reduction;
      move.to = to.dim;
    } else if (unit.now.is_shard()) {
      move.kind = to.is_replicate() ? Kind::all_gather : Kind::all_to_all;
      move.from = unit.now.dim;
      move.to = to.dim;
    } else {
      move.kind = to.is_shard() ? Kind::slice : Kind::keep;
      move.to = to.dim;
      move.reduction = to.reduction;
    }
    unit.now = to;
    moved_.resize(units_.size(), false);
    moved_[u] = true;
    join(std::move(move));
  }

  // All-gathers, and all-reduces, of neighbouring atoms are joined into one collective.
  void join(Move move) {
    const bool whole = move.kind == Move::Kind::all_gather || move.kind == Move::Kind::all_reduce;
    if (whole && !moves_.empty()) {
      Move& last = moves_.back();
      if (last.kind == move.kind && last.from == move.from && last.reduction == move.reduction &&
          last.atoms.front() == move.atoms.back() + 1) {
        last.atoms.insert(last.atoms.begin(), move.atoms.begin(), move.atoms.end());
        return;
      }
    }
    moves_.push_back(std::move(move));
  }

  std::vector<Unit> units_;
  std::vector<bool> moved_;
  std::vector<Move> moves_;
};

// Whether an atom inside `outer` cuts the groups both before and after. Its ranks then hold other
// groups than those that an exchange over `outer` alone brings.
bool cut_inside(const Layout& from, const Layout& to, std::size_t outer, Dim group) {
  for (std::size_t a = outer + 1; a < from.size(); ++a) {
    if (on(from[a], group) && on(to[a], group)) return true;
  }
  return false;
}

}  // namespace

Layout after(const Layout& layout, const Move& move) {
  if (move.exchanges_rows()) return move.lands;
  Layout next = layout;
  for (int atom : move.atoms) {
    if (move.kind == Move::Kind::keep) {
      next[atom] = Placement::partial(move.reduction);
    } else {
      next[atom] = move.to.valid() ? Placement::shard(move.to) : Placement::replicate();
    }
  }
  return next;
}

std::vector<Move> sparse_moves(const Layout& from, const Layout& to, Dim group) {
  Move sum, keep, exchange;
  sum.kind = Move::Kind::all_reduce;
  keep.kind = Move::Kind::keep;
  exchange.kind = Move::Kind::all_to_all;
  int out = 0, back = 0;
  for (std::size_t a = 0; a < from.size(); ++a) {
    const int atom = static_cast<int>(a);
    if (from[a] == to[a]) continue;
    if (from[a].is_partial() && to[a].is_replicate()) {
      sum.atoms.push_back(atom);
    } else if (from[a].is_replicate() && to[a].is_partial()) {
      keep.atoms.push_back(atom);
    } else if (from[a].is_shard() && to[a].is_shard() &&
               (from[a].dim == group) != (to[a].dim == group) && !cut_inside(from, to, a, group)) {
      exchange.atoms.push_back(atom);
      ++(to[a].dim == group ? out : back);
      exchange.from = from[a].dim;
      exchange.to = to[a].dim;
    } else {
      throw std::invalid_argument("no exchange of groups");
    }
  }
  if (out > 0 && back > 0) throw std::invalid_argument("rows would go both ways");
  std::vector<Move> list;
  Layout now = from;
  for (Move* move : {&sum, &exchange, &keep}) {
    if (move->atoms.empty()) continue;
    if (move == &exchange) {
      for (int atom : move->atoms) now[atom] = to[atom];
      move->lands = now;
    } else {
      now = after(now, *move);
    }
    list.push_back(*move);
  }
  return list;
}

std::vector<Move> moves(const Layout& from, const Layout& to, const Mesh& mesh) {
  return Mover(from, to, mesh).run();
}

}  // namespace mw
