// The last collectives of a rank, whatever carries them: what a run that failed says of each rank.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/world.h"

namespace mw::comm {

// Written by the rank's own thread, read by any.
class RankCalls {
 public:
  explicit RankCalls(int rank) : rank_(rank) {}

  // The record of the rank whose thread this is; null on other threads.
  static RankCalls* current();
  // A thread of this rank, from now on.
  void take_thread();

  // A collective begins; returns its number.
  std::int64_t begun(const std::string& axis, const char* op, const Purpose& purpose);
  void waits(std::int64_t call);  // for it to end
  void done(std::int64_t call);   // it has
  void ends(bool failed);         // the rank itself

  // The rank calls what `what` names, of a plugin. The call may take so many seconds, without those
  // in which the rank waits for others.
  void enters(std::string what, double seconds);
  void leaves();  // the call has returned
  // Says that what the rank is in has not returned within its seconds; empty: it has time left.
  std::string overdue() const;

  bool ended() const;

  RankPlace place() const;

 private:
  // More are hardly under way at a time; what a place held before is reused without allocating.
  static constexpr std::size_t kept = 64;
  RankPlace::Call& at(std::int64_t call) { return calls_[static_cast<std::size_t>(call) % kept]; }

  const int rank_;
  mutable std::mutex lock_;
  std::array<RankPlace::Call, kept> calls_;
  std::int64_t begun_ = 0, done_ = 0;
  std::int64_t last_ = -1, waits_ = -1;  // numbers; -1: none
  double since_ = 0;                     // seconds_now(), of either
  RankPlace::Call last_call_;            // kept, as its place may be taken again
  std::string inside_;                   // the plugin's call that runs; empty: none
  double limit_ = 0, entered_ = 0;       // its seconds, and since when
  bool ended_ = false, failed_ = false;
};

// The records of ranks that are threads of this process, and how they stood when the first failed.
class RankRecords {
 public:
  explicit RankRecords(const std::vector<int>& ranks);
  RankCalls& of(std::size_t place) { return *calls_[place]; }
  // Keeps the places as they are now, unless it has done so before.
  void keep();
  // What was kept; of ranks that all went well, nothing.
  const std::vector<RankPlace>& kept() const { return kept_; }
  // The first rank that is overdue, and what its overdue() says; -1: none is.
  std::pair<int, std::string> overdue() const;
  // Ranks that have not ended.
  std::vector<int> running() const;

 private:
  std::vector<std::unique_ptr<RankCalls>> calls_;
  std::mutex lock_;
  std::vector<RankPlace> kept_;
};

// A table of them for people: a line a rank, or, of more than 16 ranks, a line for those that were
// at the same place.
std::string table_of(const std::vector<RankPlace>& places);
// One of its lines: "412 collectives done, the last all-reduce on dp (gradients); waits 5.0 s in
// …".
std::string text_of(const RankPlace& place);

}  // namespace mw::comm

namespace mw {

template <class Pack>
void members(Pack& pack, RankPlace::Call& call) {
  pack(call.axis, call.op, call.label, call.phase);
}
template <class Pack>
void members(Pack& pack, RankPlace& place) {
  pack(place.rank, place.state, place.done, place.last, place.waits, place.seconds, place.inside);
}

}  // namespace mw
