// Collects the groups and pairs of ranks between which a rank's programs transfer anything.
#include "meshwright/engine/connections.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "meshwright/engine/rank_view.h"

namespace mw {
namespace {

bool between_two(Move::Kind kind) {
  return kind == Move::Kind::send || kind == Move::Kind::recv || kind == Move::Kind::shift;
}

class Connections {
 public:
  explicit Connections(int rank) : rank_(rank) {}

  void add(const Program& program) {
    for (const Segment& segment : program.segments) {
      for (const Instruction& i : segment.code) {
        if (i.ring) {
          Move shift;
          shift.kind = Move::Kind::shift;
          shift.atoms = program.rotations.at(i.op).atoms;
          add(program, shift);
        }
        if (i.begins_transfer()) add(program, i.move);
        if (i.code == Code::totals) add(program, {world_atoms(program.mesh), {}}, "");
      }
    }
  }

  std::vector<Connection> take() {
    std::vector<Connection> list;
    for (auto& [key, connection] : all_) list.push_back(std::move(connection));
    return list;
  }

 private:
  // The key by which connections are sorted. Its members know it alike, and so sort alike: axis,
  // stream, pair, whether the sender's place is odd, and ranks. In a line or a ring of ranks the
  // pairs of senders at even places have no rank in common and are made at the same time; the
  // others follow.
  using Key = std::tuple<std::string, std::string, bool, bool, std::vector<int>>;

  void add(const Program& program, const Move& move) {
    const std::string stream =
        move.stream < 0 ? "" : program.streams[static_cast<std::size_t>(move.stream)];
    const RankSet set{move.atoms, move.stages, move.exchanges_rows()};
    if (!seen_
             .insert({set, stream, between_two(move.kind) ? move.kind : Move::Kind::all_reduce,
                      move.kind == Move::Kind::shift ? -1 : move.peer})
             .second)
      return;
    if (!between_two(move.kind)) return add(program, set, stream);
    for_each_pair(program, move, rank_, [&](int from, int to) {
      const std::vector<int> ranks = program.ranks_of(set, rank_);
      const auto place = std::find(ranks.begin(), ranks.end(), from) - ranks.begin();
      Connection made{program.name_of(set), {from, to}, "", /*pair=*/true};
      Key key{made.axis, "", true, place % 2 != 0, made.ranks};
      all_.emplace(std::move(key), std::move(made));
    });
  }

  void add(const Program& program, const RankSet& set, const std::string& stream) {
    Connection made{program.name_of(set), program.ranks_of(set, rank_), stream};
    if (made.ranks.size() < 2) return;
    Key key{made.axis, stream, false, false, made.ranks};
    all_.emplace(std::move(key), std::move(made));
  }

  const int rank_;
  std::set<std::tuple<RankSet, std::string, Move::Kind, int>> seen_;
  std::map<Key, Connection> all_;
};

}  // namespace

std::vector<Connection> connections_of(const std::vector<const Program*>& programs, int rank) {
  Connections connections(rank);
  for (const Program* program : programs) connections.add(*program);
  return connections.take();
}

}  // namespace mw
