// Ranks as threads of one process: the rounds in which the members of a group exchange tensors, the
// groups, and the world that holds both.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/cores.h"
#include "comm/futex.h"
#include "meshwright/backend.h"
#include "meshwright/world.h"

namespace mw::comm {

// A rank's part in a round. The pointers are of tensors that its Work keeps alive until the round
// has ended: no other thread may drop a tensor's last reference, the rank's ledger would not see
// it.
struct Arrival {
  bool here = false;
  Call call;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  // Device tensors: recorded on the rank's stream at the call, and the stream on which the rank's
  // group communicates.
  std::optional<c10::Event> ready;
  std::optional<c10::Stream> stream;
  // The round before on the rank's stream of that name: this one is queued behind it. Null: none.
  std::shared_ptr<class Round> after;
};

// What a rank calls on one of a program's streams, whatever the groups. Of the rank's thread.
struct StreamLine {
  std::optional<c10::Stream> stream;  // once device tensors came
  std::shared_ptr<class Round> last;
};

class Round : public std::enable_shared_from_this<Round> {
 public:
  enum State : std::uint32_t { open, ready, done, failed };

  // A send and its recv, by global ranks.
  struct Pair {
    bool sender_first = false;
    int from = 0, to = 0, tag = 0;
  };

  // `axis` outlives what is done with the round.
  explicit Round(const std::string& axis) : axis_(axis) {}

  // What it is, before anyone else knows of it; a round that is done may begin anew. A group's
  // collective of that number: `ranks` (which outlive the round) are global, in the order in which
  // reductions sum them.
  void begin(std::uint64_t number, std::span<const int> ranks);
  void begin(Pair pair);

  const std::string& axis() const { return axis_; }
  // Which one it is among the group's: "collective 12", "send 0 -> 3, tag 5".
  std::string name() const;
  std::span<const int> ranks() const { return ranks_; }
  State state() const { return static_cast<State>(state_.load(std::memory_order_seq_cst)); }

  // The next three run under the lock of the round's group.
  // Enters the call of ranks()[index], and returns with how many others it was compared. If it does
  // not agree with one that is here, the round has then failed for everyone.
  std::int64_t arrive(int index, Arrival arrival);
  bool all_here() const { return arrived_ == ranks_.size(); }

  // All are here, and it is still to be queued behind another round of a rank's stream.
  bool is_put_off() const { return put_off_ && state() == open; }

  // All have arrived, ranks()[index] last: lays out the work. Small rounds are carried out at once,
  // by the caller; for others sleepers are woken to do it, as many as there are other cores. Those
  // of device tensors are queued on the caller's stream of communication, and are `done` then. Not
  // under a lock.
  void start(int index);

  // Carries out what is left, or sleeps until others have; returns the final state, or `open` if
  // the deadline has passed and some rank is still missing.
  State wait(Clock::time_point deadline);

  // Ends the round for all members unless it has ended.
  void fail(const Problem& problem, Cause cause);
  [[noreturn]] void throw_failure() const { comm::throw_failure(problem_, cause_); }

  // A member that will not wait is about to give up its buffers: fails the round unless it is done,
  // and returns when no thread touches buffers any more.
  void leave(int index);

  // Device tensors: what ranks()[index] queues on the stream from now on comes after the round.
  void block_stream(c10::Stream stream, int index) const;

  // Quotes the call of the first that has arrived.
  std::string describe() const;
  // The global ranks that have (not) arrived. Under the group's lock.
  std::vector<int> missing() const;
  std::vector<int> present() const;

 private:
  // A run of the round, and how it is cut.
  struct Task {
    Run run;
    std::int64_t chunk = 0;        // elements of a chunk
    std::int64_t first_chunk = 0;  // number of the first
  };

  void reset(std::size_t ranks);
  void refuse(std::size_t index);
  void cut();
  bool work();  // claims and carries out chunks until none is left; true if it did the last one
  void run_chunk(std::int64_t number);
  void start_on_device(int index);
  bool puts_off(int index);
  void run_on_device(int index);
  std::string wait_name(const char* what, int number) const;
  bool finish(State state);
  // Sleeps while the state is `now`, at most until the deadline.
  void sleep_while(State now, Clock::time_point deadline);
  // Wakes so many of those that sleep.
  void wake(std::int64_t sleepers = std::numeric_limits<std::int64_t>::max());

  const std::string& axis_;
  std::optional<Pair> pair_;
  std::array<int, 2> pair_ranks_{};
  std::span<const int> ranks_;
  std::uint64_t number_ = 0;
  std::size_t arrived_ = 0;
  std::size_t first_ = 0;  // index of the one that came first
  std::vector<Arrival> arrivals_;

  at::ScalarType dtype_ = at::kFloat;
  Combine combine_ = Combine::sum;
  std::int64_t item_bytes_ = 4, total_bytes_ = 0, chunks_ = 0;
  std::vector<const Call*> calls_;  // of all ranks, by index, as the next three
  std::vector<Run> runs_;
  std::vector<Task> tasks_;
  std::vector<const std::byte*> in_;
  std::vector<std::byte*> out_;
  std::optional<c10::Event> finished_;
  // Rounds of streams that are to be queued behind this one, and who starts each of them.
  std::vector<std::pair<std::shared_ptr<Round>, int>> behind_;
  std::atomic<bool> put_off_{false};

  std::atomic<std::uint32_t> state_{open};
  std::mutex sleepers_lock_;
  SleeperList sleepers_;
  std::atomic<int> working_{0};
  alignas(64) std::atomic<std::int64_t> next_chunk_{0};
  alignas(64) std::atomic<std::int64_t> chunks_done_{0};

  // Written once, by whoever turns state_ to failed, before it does.
  std::atomic<bool> failing_{false};
  Problem problem_;
  Cause cause_ = Cause::earlier;
};

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
  void fail_open(const Problem& problem);
  // What the rounds have cost since the group was made.
  struct Counts {
    std::int64_t comparisons = 0;  // of two ranks' calls
    std::int64_t rounds_made = 0;  // those that could not begin anew
  };
  Counts counts() const;
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
  std::shared_ptr<Round> spare_round();
  Seat seated(std::shared_ptr<Round> round, int index, bool complete);

  LocalWorld& world_;
  const std::string axis_;
  const std::vector<int> ranks_;

  mutable std::mutex lock_;
  Counts counts_;
  std::vector<std::uint64_t> next_;  // number of the next collective of each rank
  std::uint64_t oldest_ = 0;         // number of open_.front()
  std::vector<std::shared_ptr<Round>> open_;
  std::map<Key, std::vector<Waiting>> mail_;
  // Rounds to begin anew once nobody holds them, the longest known first.
  std::deque<std::shared_ptr<Round>> known_;
};

class LocalWorld final : public ThreadSource {
 public:
  explicit LocalWorld(int ranks, std::chrono::milliseconds timeout = RankOptions{}.timeout,
                      const Beyond* beyond = nullptr);
  ~LocalWorld() override;

  const char* name() const override { return "threads"; }
  int ranks() const override { return static_cast<int>(status_.size()); }
  c10::intrusive_ptr<c10d::Backend> backend(const Connection& connection, int index) override;
  void abort(int rank, const std::string& reason) override;

  // Whoever waits for it fails at once.
  void ended(int rank) override;
  bool has_ended(int rank) const;
  // Throws Aborted if abort() was called.
  void check_aborted() const;
  std::chrono::milliseconds timeout() const { return timeout_; }
  LocalGroup::Counts counts() const;  // of all groups

  // What a rank is about, for messages on it.
  void begins_to_wait(int rank, std::shared_ptr<Round> round);
  void ends_waiting(int rank, bool completed);
  bool waits(int rank) const override;
  // "last completed barrier on axis 'dp' and now waits in ..."
  std::string whereabouts(int rank) const override;
  // The same with what is known beyond this world, and the function of backend.h for all ranks; it
  // may take a second.
  std::string known_whereabouts(int rank) const;
  std::string held_up_by(const std::vector<int>& missing) const;

 private:
  struct Status {
    mutable std::mutex lock;
    std::shared_ptr<Round> now, last;
    std::atomic<bool> ended{false};
  };

  std::shared_ptr<LocalGroup> group_of(const std::string& axis, const std::vector<int>& group,
                                       int index);

  const std::chrono::milliseconds timeout_;
  const std::optional<Beyond> beyond_;
  std::vector<std::unique_ptr<Status>> status_;
  std::atomic<bool> aborted_{false};
  std::string abort_message_;  // written before aborted_ turns true

  mutable std::mutex lock_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<LocalGroup>> groups_;
  std::map<std::pair<int, std::string>, std::shared_ptr<StreamLine>> lines_;  // by rank and stream
};

}  // namespace mw::comm
