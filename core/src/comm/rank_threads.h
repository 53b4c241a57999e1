// Ranks as threads of this process, whatever connects them, and how they ended: what run_ranks
// throws from, and what processes tell each other.
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

// How near to the cause an error is.
enum class Nearness : std::uint8_t { consequence, waited_in_vain, cause };

// How the ranks of one process ended; of those that failed the one nearest to the cause, the first
// of these.
struct RanksEnd {
  enum class State : std::uint8_t { well, stopped, failed };
  State state = State::well;
  Nearness nearness = Nearness::consequence;
  int rank = -1;
  double time = 0;  // seconds_now(), when it was noted
  std::vector<Problem> problems = {};
  std::vector<RankPlace> places = {};  // where its ranks were when the first of them failed

  // Whether this rather than `other` says why the run failed.
  bool nearer_than(const RanksEnd& other) const;
  // Throws what it says: Stopped, or RankFailed with the rank in front of each message.
  void rethrow() const;
};
template <class Pack>
void members(Pack& pack, RanksEnd& end) {
  pack(end.state, end.nearness, end.rank, end.time, end.problems, end.places);
}

// How an exception on a rank counts; called in its handler.
RanksEnd end_by_exception(int rank);

// Runs `body` for each of `here`, ranks of `source`, in a thread of its own with so many threads of
// ATen's, and joins them all. Ranks that fail stop those of the whole source; one that then does
// not come back within `patience` hangs (on_hang). They run in turns on `cores`; null: all at once.
RanksEnd run_rank_threads(CommunicatorSource& source, const std::vector<int>& here, int threads,
                          const std::function<void(RankContext&)>& body,
                          std::chrono::milliseconds patience, Cores* cores = nullptr);

// How long to wait for a rank's thread after another one has failed, given a run's timeout.
std::chrono::milliseconds patience_of(std::chrono::milliseconds timeout);

}  // namespace mw::comm
