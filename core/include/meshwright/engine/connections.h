// Lists the communicators that a rank needs for the transfers of its programs. Ranks make all of
// them when a run begins, in the order of connections_of(), since a library such as NCCL makes a
// communicator by a call that waits for all members. Predictions count communicators, since each
// takes memory.
#pragma once

#include <vector>

#include "meshwright/program.h"
#include "meshwright/world.h"

namespace mw {

// The connections of rank `rank` for all transfers of `programs`, which are programs of its stage;
// each connection once. Any two ranks list the connections that they share in the same order, so
// that ranks which make their connections one after the other cannot deadlock.
std::vector<Connection> connections_of(const std::vector<const Program*>& programs, int rank);

// Calls visit(sender, receiver) for each pair of ranks between which `move` of rank `rank`, a send,
// a recv or a shift, transfers data.
template <class Visit>
void for_each_pair(const Program& program, const Move& move, int rank, const Visit& visit) {
  const std::vector<int> ranks = program.ranks_of({move.atoms, move.stages}, rank);
  const auto ways = static_cast<int>(ranks.size());
  int me = 0;
  while (ranks[static_cast<std::size_t>(me)] != rank) ++me;
  const auto at = [&](int index) { return ranks[static_cast<std::size_t>(index % ways)]; };
  if (move.kind != Move::Kind::recv)
    visit(rank, at(move.kind == Move::Kind::send ? move.peer : me + 1));
  if (move.kind != Move::Kind::send)
    visit(at(move.kind == Move::Kind::recv ? move.peer : me + ways - 1), rank);
}

}  // namespace mw
