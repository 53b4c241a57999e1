// Ranks as threads of one process: the groups they meet in, and what happens when one of them
// fails, ends or does not come.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "comm/local_round.h"
#include "meshwright/world.h"

namespace mw::comm {

class LocalWorld;

// Where the ranks of one group meet. Collectives are matched by their order on each rank; a send
// meets the recv of the same pair and tag, first to first.
class LocalGroup {
 public:
  LocalGroup(LocalWorld& world, std::string axis, std::vector<int> ranks);

  const std::string& axis() const { return axis_; }
  const std::vector<int>& ranks() const { return ranks_; }

  // A rank's place in a round: its index among the round's arrivals.
  struct Seat {
    std::shared_ptr<Round> round;
    int index = 0;
  };
  // Both throw if the world is aborted, or if the round has failed by this call or before it.
  Seat join(int index, Arrival arrival);
  Seat join_pair(int index, int peer, int tag, Arrival arrival);

  // The round has waited `seconds` for a rank that has not come: fails it, naming who and why.
  void fail_late(Round& round, double seconds);
  void fail_open(const std::string& message, const std::string& hint);
  // Fails the rounds that wait for `rank`, which makes no further calls.
  void fail_ended(int rank);

 private:
  struct Key {  // of a mailbox: group indices and tag
    int from, to, tag;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Waiting {  // a send or recv that its partner has not met; one sort at a time in a mailbox
    std::shared_ptr<Round> round;
    bool sends;
  };

  void check_ended(Round& round);
  Seat seated(std::shared_ptr<Round> round, int index, bool complete);

  LocalWorld& world_;
  const std::string axis_;
  const std::vector<int> ranks_;

  std::mutex lock_;
  std::vector<std::uint64_t> next_;  // number of the next collective of each rank
  std::uint64_t oldest_ = 0;         // number of open_.front()
  std::vector<std::shared_ptr<Round>> open_;
  std::map<Key, std::vector<Waiting>> mail_;
};

class LocalWorld final : public CommunicatorSource {
 public:
  explicit LocalWorld(int ranks, std::chrono::milliseconds timeout = RankOptions{}.timeout);
  ~LocalWorld() override;

  const char* name() const override { return "threads"; }
  int ranks() const override { return static_cast<int>(status_.size()); }
  c10::intrusive_ptr<c10d::Backend> backend(const std::string& axis, const std::vector<int>& group,
                                            int index) override;
  void abort(int rank, const std::string& reason) override;

  // Whoever waits for it fails at once.
  void ended(int rank) override;
  bool has_ended(int rank) const;
  // Throws Aborted if abort() was called.
  void check_aborted() const;
  std::chrono::milliseconds timeout() const { return timeout_; }

  // What a rank is about, for messages on it.
  void begins_to_wait(int rank, std::shared_ptr<Round> round);
  void ends_waiting(int rank, bool completed);
  // "last completed barrier on axis 'dp' and now waits in ..."
  std::string whereabouts(int rank) const;

 private:
  struct Status {
    mutable std::mutex lock;
    std::shared_ptr<Round> now, last;
    std::atomic<bool> ended{false};
  };

  const std::chrono::milliseconds timeout_;
  std::vector<std::unique_ptr<Status>> status_;
  std::atomic<bool> aborted_{false};
  std::string abort_message_;  // written before aborted_ turns true

  mutable std::mutex lock_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<LocalGroup>> groups_;
};

}  // namespace mw::comm
