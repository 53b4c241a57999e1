// Records the last collectives of each rank, so that a failed run can say where each rank was.
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

// The record of one rank. The rank's own thread writes it, any thread may read it.
class RankCalls {
 public:
  explicit RankCalls(int rank) : rank_(rank) {}

  // The record of the rank whose thread this is; null on other threads.
  static RankCalls* current();
  // Makes this record the current() one of the calling thread.
  void take_thread();

  // A collective begins; returns its number.
  std::int64_t begun(const std::string& axis, const char* op, const Purpose& purpose);
  void waits(std::int64_t call);  // the rank waits for the collective to end
  void done(std::int64_t call);   // the collective has ended
  void ends(bool failed);         // the rank has ended

  // The rank begins a call of a plugin. `callee` names the plugin's object ("profiler
  // (observers[1])"), and `when` the call ("called after step 3"). The call may take `seconds`, not
  // counting the time in which the rank waits for other ranks.
  struct PluginCall {
    std::string callee;  // empty: none
    double seconds = 0;
  };
  struct Inside {
    PluginCall call;
    std::string text;   // the call in words; empty: none runs
    double spent = 0;   // seconds of the call so far
    double looked = 0;  // seconds_now() when `spent` was counted
  };
  Inside enters(PluginCall call, const std::string& when);  // returns what the call is made within
  void leaves(Inside before);  // the call has returned, to the one that it was made within
  PluginCall plugin_call() const;
  // A message that the plugin's call has not returned within its seconds; empty: it has time left.
  // To be called every second or more often: a longer time since the last call, in which the
  // process may have been stopped, counts as a second.
  std::string overdue();

  bool ended() const;

  RankPlace place() const;

 private:
  // Collectives that the record holds, in a ring buffer: more are hardly under way at a time.
  static constexpr std::size_t kept = 64;
  RankPlace::Call& at(std::int64_t call) { return calls_[static_cast<std::size_t>(call) % kept]; }

  const int rank_;
  mutable std::mutex lock_;
  std::array<RankPlace::Call, kept> calls_;
  std::int64_t begun_ = 0, done_ = 0;
  std::int64_t last_ = -1, waits_ = -1;  // number of the last and the awaited collective; -1: none
  double since_ = 0;                     // seconds_now() when last_ ended or waits_ was begun
  RankPlace::Call last_call_;            // copy of last_, whose place in calls_ may be reused
  Inside inside_;                        // the plugin's call that runs
  bool ended_ = false, failed_ = false;
};

// While an object exists, the rank of this thread counts as calling a plugin. On other threads it
// does nothing.
class InPlugin {
 public:
  InPlugin(const RankCalls::PluginCall& call, const std::string& when)
      : rank_(call.callee.empty() ? nullptr : RankCalls::current()) {
    if (rank_ != nullptr) before_ = rank_->enters(call, when);
  }
  ~InPlugin() {
    if (rank_ != nullptr) rank_->leaves(std::move(before_));
  }
  InPlugin(const InPlugin&) = delete;
  InPlugin& operator=(const InPlugin&) = delete;

 private:
  RankCalls* const rank_;
  RankCalls::Inside before_;
};

// The records of ranks that are threads of this process, and the places of these ranks when the
// first one failed.
class RankRecords {
 public:
  explicit RankRecords(const std::vector<int>& ranks);
  RankCalls& of(std::size_t place) { return *calls_[place]; }
  // Keeps the places as they are now, unless it has done so before.
  void keep();
  // The places that keep() has kept; empty if no rank failed.
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

// A table of ranks' places for people, one line per rank; with more than 16 ranks, one line for
// ranks at the same place.
std::string table_of(const std::vector<RankPlace>& places);
// One place as text: "412 collectives done, the last all-reduce on dp (gradients); waits 5.0 s in
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
