// Collectives between ranks that are threads of one process. A round is one collective, or a send
// and its recv; a group matches the calls of its ranks to rounds; the world holds the groups.
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

// A rank's arguments in a round. The pointers belong to tensors that the rank's Work keeps alive
// until the round has ended. No other thread may drop the last reference to a tensor, because the
// rank's ledger would not see the free.
struct Arrival {
  bool here = false;
  Call call;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  // For device tensors: the event that the rank's stream records at the call, and the stream on
  // which the rank's group communicates.
  std::optional<c10::Event> ready;
  std::optional<c10::Stream> stream;
  // The last round before on the rank's program stream, behind which this one is queued; null:
  // none.
  std::shared_ptr<class Round> after;
};

// A rank's transfers on one of a program's streams, in all groups. Used by the rank's thread.
struct StreamLine {
  std::optional<c10::Stream> stream;  // set at the first call with device tensors
  std::shared_ptr<class Round> last;  // the last round on the stream
};

// One collective of a group, or a send and its recv: compares the calls of the ranks, and carries
// out the transfer once all have arrived. Used again for later collectives.

class Round : public std::enable_shared_from_this<Round> {
 public:
  enum State : std::uint32_t { open, ready, done, failed };

  // A send and its recv, by global ranks.
  struct Pair {
    bool sender_first = false;
    int from = 0, to = 0, tag = 0;
  };

  // `axis` must outlive the round.
  explicit Round(const std::string& axis) : axis_(axis) {}

  // Makes the round collective `number` of a group, or a send and its recv, before other threads
  // know of the round; a round that is done may begin again. `ranks`: global ranks, in the order in
  // which reductions sum them; they must outlive the round.
  void begin(std::uint64_t number, std::span<const int> ranks);
  void begin(Pair pair);

  const std::string& axis() const { return axis_; }
  // The name of the round within its group: "collective 12", "send 0 -> 3, tag 5".
  std::string name() const;
  std::span<const int> ranks() const { return ranks_; }
  State state() const { return static_cast<State>(state_.load(std::memory_order_seq_cst)); }

  // arrive(), all_here() and is_put_off() are called under the lock of the round's group.
  //
  // Enters the call of ranks()[index], and returns the number of other calls with which it was
  // compared. If the call does not agree with one of them, the round fails for all ranks.
  std::int64_t arrive(int index, Arrival arrival);
  bool all_here() const { return arrived_ == ranks_.size(); }

  // Whether all ranks are here, but the round must still be queued behind another round of a
  // stream.
  bool is_put_off() const { return put_off_ && state() == open; }

  // Called without a lock once all ranks have arrived, ranks()[index] last. The caller carries out
  // a small round at once. For a large round it wakes sleepers to carry out chunks, as many as
  // there are other cores. A round of device tensors is queued on the caller's stream of
  // communication, and is then `done`.
  void start(int index);

  // Carries out chunks that are left, or sleeps until other ranks have; returns the final state, or
  // `open` if the deadline has passed and some rank is still missing.
  State wait(Clock::time_point deadline);

  // Fails the round for all members, unless it has ended.
  void fail(const Problem& problem, Cause cause);
  [[noreturn]] void throw_failure() const { comm::throw_failure(problem_, cause_); }

  // Called by a member that frees its buffers without waiting: fails the round unless it is done,
  // and returns when no thread uses the buffers any more.
  void leave(int index);

  // For device tensors: makes work that ranks()[index] later queues on `stream` wait for the round.
  void block_stream(c10::Stream stream, int index) const;

  // Call::describe() of the first rank, by index, that has arrived.
  std::string describe() const;
  // The global ranks that have not arrived, and those that have. Called under the group's lock.
  std::vector<int> missing() const;
  std::vector<int> present() const;

 private:
  // A range of elements to copy or reduce, and the chunks into which it is cut.
  struct Task {
    Run run;
    std::int64_t chunk = 0;        // elements of a chunk
    std::int64_t first_chunk = 0;  // number of the task's first chunk within the round
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
  // Wakes at most `sleepers` of the sleeping threads.
  void wake(std::int64_t sleepers = std::numeric_limits<std::int64_t>::max());

  const std::string& axis_;
  std::optional<Pair> pair_;
  std::array<int, 2> pair_ranks_{};
  std::span<const int> ranks_;
  std::uint64_t number_ = 0;
  std::size_t arrived_ = 0;
  std::size_t first_ = 0;  // index of the rank that arrived first
  std::vector<Arrival> arrivals_;

  at::ScalarType dtype_ = at::kFloat;
  Combine combine_ = Combine::sum;
  std::int64_t item_bytes_ = 4, total_bytes_ = 0, chunks_ = 0;
  std::vector<const Call*> calls_;  // the call of each rank, by index
  std::vector<Run> runs_;
  std::vector<Task> tasks_;
  std::vector<const std::byte*> in_;
  std::vector<std::byte*> out_;
  std::optional<c10::Event> finished_;
  // Rounds that are to be queued behind this one, and for each the index of the rank that starts
  // it.
  std::vector<std::pair<std::shared_ptr<Round>, int>> behind_;
  std::atomic<bool> put_off_{false};

  std::atomic<std::uint32_t> state_{open};
  std::mutex sleepers_lock_;
  SleeperList sleepers_;
  std::atomic<int> working_{0};
  alignas(64) std::atomic<std::int64_t> next_chunk_{0};
  alignas(64) std::atomic<std::int64_t> chunks_done_{0};

  // The failure, written once, by the thread that sets state_ to failed, before it does.
  std::atomic<bool> failing_{false};
  Problem problem_;
  Cause cause_ = Cause::earlier;
};

class LocalWorld;

// A group of ranks, which matches their calls to rounds. Collectives are matched by their order on
// each rank; a send is matched with a recv of the same pair and tag, in the order of calls.
class LocalGroup {
 public:
  LocalGroup(LocalWorld& world, std::string axis, std::vector<int> ranks);

  const std::string& axis() const { return axis_; }
  const std::vector<int>& ranks() const { return ranks_; }

  // A round that a rank has joined, and the rank's index among the round's arrivals.
  struct Seat {
    std::shared_ptr<Round> round;
    int index = 0;
  };
  // Join a collective, or a send or recv. They throw if the world is aborted, or if the round has
  // failed by this call or before it.
  Seat join(int index, Arrival arrival);
  Seat join_pair(int index, int peer, int tag, Arrival arrival);

  // Fails a round that has waited `seconds` for missing ranks, with the ranks and what they do.
  void fail_late(Round& round, double seconds);
  // Fails all rounds that wait for ranks.
  void fail_open(const Problem& problem);
  // Work of the group since it was made, for tests.
  struct Counts {
    std::int64_t comparisons = 0;  // comparisons of two ranks' calls
    std::int64_t rounds_made = 0;  // rounds that were allocated, not reused
  };
  Counts counts() const;
  // Fails the rounds that wait for `rank`, which makes no further calls.
  void fail_ended(int rank);

 private:
  struct Key {  // key of a mailbox: group indices and tag
    int from, to, tag;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Waiting {  // a send or recv without its partner; a mailbox holds only sends, or only recvs
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
  // Rounds that can be used again once no thread holds them, the oldest first.
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

  void ended(int rank) override;
  bool has_ended(int rank) const;
  // Throws Aborted if abort() was called.
  void check_aborted() const;
  std::chrono::milliseconds timeout() const { return timeout_; }
  LocalGroup::Counts counts() const;  // sums over all groups

  // Note that a rank begins or ends to wait for a round, for messages.
  void begins_to_wait(int rank, std::shared_ptr<Round> round);
  void ends_waiting(int rank, bool completed);
  bool waits(int rank) const override;
  // What a rank does: "last completed barrier on axis 'dp' (collective 4) and now waits on ..."
  std::string whereabouts(int rank) const override;
  // As whereabouts() and comm::held_up_by, but for ranks of all processes (Beyond). held_up_by()
  // may take a second.
  std::string known_whereabouts(int rank) const;
  std::string held_up_by(const std::vector<int>& missing) const;

 private:
  struct Status {
    mutable std::mutex lock;
    std::shared_ptr<Round> now, last;  // the round for which the rank waits, and the last completed
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
  // The program streams, by rank and name of the stream.
  std::map<std::pair<int, std::string>, std::shared_ptr<StreamLine>> lines_;
};

}  // namespace mw::comm
