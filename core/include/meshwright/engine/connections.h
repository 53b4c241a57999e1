// What a rank has a communicator for, by its programs. Libraries such as NCCL make a communicator
// by a call that waits until all members make it, and each one takes memory. So ranks make all of
// them when a run begins, in the order of this list, and a prediction counts its entries.
#pragma once

#include <string>
#include <vector>

#include "meshwright/program.h"

namespace mw {

struct Connection {
  std::string axis;
  std::string stream;      // of the program, on which transfers go; empty: none
  RankSet set;             // the ranks; of a pair: those of which it has two
  bool pair = false;       // what one rank sends to another, and nothing else
  std::vector<int> ranks;  // ascending; of a pair: who sends, who receives
};

// The communicators of rank `rank`, each once, for all transfers of `programs`, which are programs
// of its stage. Any two ranks have what they share in the same order: who makes them in the order
// of the list, and waits each time for the other members, waits for none in vain.
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
