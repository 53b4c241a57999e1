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

// A time limit for waiting for other ranks, which does not count time in which this process was
// stopped (SIGSTOP, by a batch system that suspends its jobs), because the other ranks were stopped
// too. The waiter calls over() at each next(): after an eighth of the limit, or after a second if
// that is less. An interval longer than two such periods counts as two.
class WaitLimit {
 public:
  using Clock = std::chrono::steady_clock;
  explicit WaitLimit(Clock::duration limit, Clock::time_point now = Clock::now())
      : look_(std::min<Clock::duration>(limit / 8, std::chrono::seconds(1))),
        left_(limit),
        looked_(now) {}

  // The time until which the caller should wait before it calls over().
  Clock::time_point next() const { return looked_ + std::min(left_, look_); }
  // Returns whether the limit is reached; to be called after each wait. A thread of a busy machine
  // may wake up late, but one that wakes up more than one period late was stopped.
  bool over(Clock::time_point now = Clock::now()) {
    left_ -= std::min(now - looked_, 2 * look_);
    looked_ = now;
    return left_ <= Clock::duration{};
  }

 private:
  Clock::duration look_, left_;
  Clock::time_point looked_;
};

// The arguments of a collective, as one rank called it. The ranks of a group compare them, and
// error messages quote them.
struct Call {
  Collective op = Collective::barrier;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  // Elements of the tensor that is reduced, broadcast or sent; all-gather: of the input;
  // reduce-scatter: of the output; all-to-all: of one row.
  std::int64_t elements = 0;
  Combine combine = Combine::sum;
  int root = -1;                                    // broadcast: index in the group
  std::vector<std::int64_t> in_splits, out_splits;  // all-to-all: rows to and from each rank
  std::string label, phase;

  // The call as text: "all-reduce (sum) of 1024 float for 'layers.0.attention.o' (forward)".
  std::string describe() const;
  // Whether this call, of the group member at `place`, agrees with the call of another member.
  // Between calls that agree, only the splits of an all-to-all may differ.
  bool fits(std::size_t place, const Call& other, std::size_t other_place) const;
};

// A contiguous range of elements that a collective copies from the inputs of some members of the
// group to the outputs of some members. If there are several inputs, each output gets their
// reduction, in the order of the members.
struct Run {
  struct Buffers {
    std::size_t first = 0, count = 0;  // members of the group: [first, first + count)
    std::int64_t begin = 0;            // offset of the range in each member's buffer, in elements
    bool has(std::size_t member) const { return member - first < count; }
  };
  Buffers in, out;
  std::int64_t elements = 0;
};
// Lists the ranges (Run) that one collective copies, none of them empty. `calls`: the call of each
// member; for a send and its recv, these two calls. A null call is not known to this process: an
// all-to-all's ranges between two such members are left out, and the offsets of ranges in their
// buffers are not set.
void lay_out(std::span<const Call* const> calls, std::vector<Run>& runs);

// Why a collective failed.
enum class Cause : std::uint8_t {
  earlier,  // an earlier failure of the run
  absence,  // a rank did not come in time; it may have failed without having reported it yet
  itself,   // a fault of this collective, such as calls that disagree
};
// Throws Aborted (earlier), WaitedInVain (absence) or Error (itself).
[[noreturn]] void throw_failure(const Problem& problem, Cause cause);

// Lists as "rank 2" or "ranks 1, 2 and 5".
std::string list_ranks(const std::vector<int>& ranks);

// The problems that a backend reports, in the same words for every transport. `name`: which
// collective of the group it is, "collective 12". `call`: Call::describe() of it.
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
// A rank that runs and waits for no other rank, and a text of what it did last, such as "has
// completed no collective".
struct IdleRank {
  int rank = 0;
  std::string text;
};
// Names the ranks that hold up a collective whose `missing` ranks all wait elsewhere themselves:
// the ranks that wait for nobody (`idle`, of all ranks of the run). Empty if one of `missing` is
// idle, if no rank is idle, or if too many are idle to blame them.
std::string held_up_by(const std::vector<int>& missing, const std::vector<IdleRank>& idle);

// Base class for the backend of one rank in one group. It checks the arguments of each call. A
// valid call becomes an Issue, which the subclass carries out in issue() or issue_pair(); both
// return at once.
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
  // One checked call. `in` and `out` are contiguous. They are the same tensor for a collective that
  // works in place, and undefined for a barrier.
  struct Issue {
    Call call;
    at::Tensor in, out;
    std::vector<at::Tensor> tensors, results;  // kept alive until the end; what result() returns
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

// Throws Error (run, "collective.rank") if `group` has a rank outside [0, ranks), or if `index` is
// not the place of a member.
void check_group(const std::string& axis, const std::vector<int>& group, int index, int ranks);

// Returns the process of each rank. `ranks`: the ranks of each process, as Carrier::connect() gets
// them. -1: no process carries the rank.
std::vector<int> process_of_ranks(const std::vector<std::vector<int>>& ranks);

// A source that connects ranks which are threads of this process.
class ThreadSource : public CommunicatorSource {
 public:
  // Whether the rank waits for another rank in a group of this source, and a text of what the rank
  // waits for or did last. Any thread may call these; they take no lock under which a function of
  // Beyond is called.
  virtual bool waits(int rank) const = 0;
  virtual std::string whereabouts(int rank) const = 0;
};
// Answers questions about ranks that a ThreadSource cannot answer, because its ranks may also wait
// in groups with ranks of other processes. Ranks' threads call these functions.
struct Beyond {
  std::function<std::string(int rank)> whereabouts;
  // comm::held_up_by over the ranks of all processes. The call may take a second.
  std::function<std::string(const std::vector<int>& missing)> held_up_by;
};
// Makes a source for groups whose members are all threads of this process. `ranks`: of the whole
// run. `beyond`: null if all ranks of the run are in this process; a function that is empty has no
// answer.
std::unique_ptr<ThreadSource> thread_source(int ranks, std::chrono::milliseconds timeout,
                                            const Beyond* beyond = nullptr);

}  // namespace mw::comm
