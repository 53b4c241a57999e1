// The communicators that a rank needs for the transfers of its programs. Ranks make all of them
// when a run begins, in the order of connections_of(), since libraries such as NCCL make a
// communicator by a call that waits until all members make it. Predictions count them, since each
// takes memory.
#pragma once

#include <vector>

#include "meshwright/program.h"
#include "meshwright/world.h"

namespace mw {

// The connections of rank `rank`, each once, for all transfers of `programs`, which are programs of
// its stage. Any two ranks list the connections that they share in one order. So ranks that make
// their connections one after the other never wait for each other in a circle.
std::vector<Connection> connections_of(const std::vector<const Program*>& programs, int rank);

// Calls `visit` with each pair of ranks between which a send, a recv or a shift of rank `rank`
// goes: who sends, who receives.
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
