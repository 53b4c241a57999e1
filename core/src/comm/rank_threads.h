// Runs ranks as threads of this process, over any source, and collects how they ended. run_ranks
// throws by this result, and processes send it to each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/cores.h"
#include "meshwright/engine/rank_calls.h"
#include "meshwright/error.h"
#include "meshwright/world.h"

namespace mw::comm {

// How near an error is to the cause of a run's failure, from far to near.
enum class Nearness : std::uint8_t { consequence, waited_in_vain, cause };

// How the ranks of one process ended. If ranks failed: the error that is nearest to the cause, and
// among these the first.
struct RanksEnd {
  enum class State : std::uint8_t { well, stopped, failed };
  State state = State::well;
  Nearness nearness = Nearness::consequence;
  int rank = -1;
  double time = 0;  // seconds_now() at the failure
  std::vector<Problem> problems = {};
  std::vector<RankPlace> places = {};  // places of the process' ranks when the first one failed

  // Whether this end, rather than `other`, is the cause of the run's failure.
  bool nearer_than(const RanksEnd& other) const;
  // Throws Stopped, or RankFailed with the rank in front of each message; nothing if all went well.
  void rethrow() const;
};
template <class Pack>
void members(Pack& pack, RanksEnd& end) {
  pack(end.state, end.nearness, end.rank, end.time, end.problems, end.places);
}

// The end of a rank by the exception that is being handled; to be called in a catch block.
RanksEnd end_by_exception(int rank);

// Runs `body` for each rank of `here` in a thread of its own, with `threads` threads for ATen's
// ops, and joins all of them. A rank that fails stops all ranks of the source. A thread that has
// not ended within `patience` after that counts as hanging (on_hang). The ranks share `cores` in
// turns; null: all run at once.
RanksEnd run_rank_threads(CommunicatorSource& source, const std::vector<int>& here, int threads,
                          const std::function<void(RankContext&)>& body,
                          std::chrono::milliseconds patience, Cores* cores = nullptr);

// How long to wait for a rank's thread after another one has failed, given a run's timeout.
std::chrono::milliseconds patience_of(std::chrono::milliseconds timeout);

}  // namespace mw::comm
