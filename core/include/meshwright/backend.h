// Helpers for writing a c10d::Backend: calls that are checked and compared between ranks,
// reductions of host memory, and groups of ranks that are threads of one process.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "meshwright/communicator.h"
#include "meshwright/error.h"
#include "meshwright/world.h"

namespace mw::comm {

enum class Combine : std::uint8_t { sum, average, product, min, max };
const char* name_of(Combine combine);

// Every output gets in[0] + in[1] + … (in that order, whoever calls), for `count` elements that
// begin `first` elements into each buffer. Sums are kept in the type that ATen accumulates in
// (float for bf16 and fp16) and rounded once; integers wrap, bool is "or" / "and", max and min keep
// a NaN. An output may be one of the inputs; otherwise buffers must not overlap.
// Throws Error (run) for a dtype that it lacks, or an average of integers.
void reduce(c10::ScalarType dtype, Combine combine, std::span<const std::byte* const> in,
            std::span<std::byte* const> out, std::int64_t first, std::int64_t count);

// Throws as reduce() would, before any rank waits.
void check_reducible(c10::ScalarType dtype, Combine combine);

// A time limit for waiting for others. One waits in looks of an eighth of the limit, or of a second
// if that is less. A look that takes longer than two of these counts as two, since this process did
// not run meanwhile: it was stopped (SIGSTOP, by a batch system that suspends its jobs), and so
// were the others, so that nobody is late.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Patience(Clock::duration limit, Clock::time_point now = Clock::now())
      : look_(std::min<Clock::duration>(limit / 8, std::chrono::seconds(1))),
        left_(limit),
        looked_(now) {}

  // When to look next.
  Clock::time_point next() const { return looked_ + std::min(left_, look_); }
  // Call this after each look. Whether the limit is reached. A thread of a busy machine wakes up
  // late, but one that is later than twice its look did not run.
  bool over(Clock::time_point now = Clock::now()) {
    left_ -= std::min(now - looked_, 2 * look_);
    looked_ = now;
    return left_ <= Clock::duration{};
  }

 private:
  Clock::duration look_, left_;
  Clock::time_point looked_;
};

// What one rank called; two ranks' calls must agree. Also what messages quote.
struct Call {
  Collective op = Collective::barrier;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::int64_t elements = 0;  // of the tensor reduced, broadcast, sent; all-gather: of the input;
                              // reduce-scatter: of the output; all-to-all: of one row
  Combine combine = Combine::sum;
  int root = -1;                                    // broadcast: index in the group
  std::vector<std::int64_t> in_splits, out_splits;  // all-to-all: rows to and from each rank
  std::string label, phase;

  // "all-reduce (sum) of 1024 float for 'layers.0.attention.o' (forward)"
  std::string describe() const;
  // Whether two members of a group can be partners with these calls, by their places in it: only
  // the splits of an all-to-all differ between calls that fit.
  bool fits(std::size_t place, const Call& other, std::size_t other_place) const;
};

// What a round moves, whatever carries it: elements that go from the inputs of some members of the
// group to the outputs of some. Of several inputs the outputs get the reduction, in the order of
// the members.
struct Run {
  struct Buffers {
    std::size_t first = 0, count = 0;  // members
    std::int64_t begin = 0;            // where the run begins in each of their buffers, in elements
    bool has(std::size_t member) const { return member - first < count; }
  };
  Buffers in, out;
  std::int64_t elements = 0;
};
// The runs of one round, none of them empty. `calls`: by member; of a send and its recv those two.
// Null for those that are not known: of an all-to-all the runs between two of these are left out,
// and where a run begins in the buffer of one of them is not said.
void lay_out(std::span<const Call* const> calls, std::vector<Run>& runs);

// Why a round failed.
enum class Cause : std::uint8_t {
  earlier,  // something that went wrong before
  absence,  // a rank did not come: it may have failed, and not said so yet
  itself,
};
// Aborted, WaitedInVain or Error.
[[noreturn]] void throw_failure(const Problem& problem, Cause cause);

// Lists as "rank 2" or "ranks 1, 2 and 5".
std::string list_ranks(const std::vector<int>& ranks);

// The words for what goes wrong where ranks meet, whatever carries them. `name`: which one it is
// among the group's, "collective 12".
Problem disagreement(const std::string& axis, const std::string& name, int rank, const Call& call,
                     int other_rank, const Call& other_call);
Problem ended_rank(const std::string& axis, const std::string& name, const std::string& call,
                   int ended, const std::vector<int>& waiting, const std::string& whereabouts);
Problem lateness(const std::string& axis, const std::string& name, const std::string& call,
                 double seconds, const std::vector<int>& missing, const std::vector<int>& waiting,
                 const std::string& whereabouts);
Problem aborted_run(const std::string& why, const std::string& hint = "");
Problem dropped_collective(const std::string& axis, int rank, const std::string& what);
std::string stopped_by(int rank, const std::string& reason);
// A rank that runs and waits for no other one, and what it did last: "has completed no collective".
struct IdleRank {
  int rank = 0;
  std::string text;
};
// Where all of `missing` wait themselves, words that name the ranks that wait for nobody (`idle`,
// of all ranks): the others wait for one of them, directly or in turn. Empty if `missing` has one
// of them, if there are none, or if there are too many to blame.
std::string held_up_by(const std::vector<int>& missing, const std::vector<IdleRank>& idle);

// A rank's backend in one group, as far as checking goes what it is called with. A call that is
// right in itself becomes an Issue and goes to issue() or issue_pair(), which return at once.
class CheckedBackend : public c10d::Backend {
 public:
  // `group`: global ranks in order; `index`: this rank's place in it.
  CheckedBackend(std::string axis, const std::vector<int>& group, int index,
                 std::chrono::milliseconds timeout);

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(std::vector<at::Tensor>& tensors,
                    const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& out_splits, std::vector<std::int64_t>& in_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 protected:
  // One checked call. `in` and `out` are contiguous, the same tensor for what works in place, and
  // undefined for a barrier.
  struct Issue {
    Call call;
    at::Tensor in, out;
    std::vector<at::Tensor> tensors, results;  // to keep until it has ended; what result() gives
    c10d::OpType type = c10d::OpType::UNKNOWN;
    std::chrono::milliseconds timeout{};
  };
  virtual WorkPtr issue(Issue issue) = 0;
  virtual WorkPtr issue_pair(Issue issue, int peer, int tag) = 0;

  const std::string& axis() const { return axis_; }
  int global_rank() const { return global_rank_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  WorkPtr send_or_recv(Collective op, std::vector<at::Tensor>& tensors, int peer, int tag);
  Issue new_issue(Call call, at::Tensor in, at::Tensor out, c10d::OpType type,
                  std::chrono::milliseconds timeout) const;
  Call new_call(Collective op, const at::Tensor& tensor, std::int64_t elements) const;
  void check(bool fits, Collective op, const std::string& what) const;
  void check_tensor(Collective op, const at::Tensor& tensor) const;
  at::Tensor& only_tensor(Collective op, std::vector<at::Tensor>& tensors) const;
  void check_pair(Collective op, const at::Tensor& input, const at::Tensor& output) const;

  const std::string axis_;
  const int global_rank_;
  std::chrono::milliseconds timeout_;
};

// Throws Error (run, "collective.rank") where a group names a rank that is none of `ranks`, or has
// no member at this place.
void check_group(const std::string& axis, const std::vector<int>& group, int index, int ranks);

// By rank, the process that carries it, from what Carrier::connect() is told: ranks[p] are those of
// process p. Ranks that nobody carries have -1.
std::vector<int> process_of_ranks(const std::vector<std::vector<int>>& ranks);

// Ranks that are threads of this process.
class ThreadSource : public CommunicatorSource {
 public:
  // Whether the rank waits for another one in a group of this source, and what it is about as far
  // as this source knows. From any thread; takes no lock under which `Beyond` is called.
  virtual bool waits(int rank) const = 0;
  virtual std::string whereabouts(int rank) const = 0;
};
// What is known of ranks where a thread source connects some of a run's ranks alone: in other
// groups they may wait for ranks of other processes. Called by ranks' threads.
struct Beyond {
  std::function<std::string(int rank)> whereabouts;
  // As the function of this name, of all ranks. It may take a second.
  std::function<std::string(const std::vector<int>& missing)> held_up_by;
};
// Connects those of `ranks` ranks that are threads of this process: for groups all of whose members
// live here. `beyond`: null if all ranks live here; what it leaves empty is not known.
std::unique_ptr<ThreadSource> thread_source(int ranks, std::chrono::milliseconds timeout,
                                            const Beyond* beyond = nullptr);

}  // namespace mw::comm
