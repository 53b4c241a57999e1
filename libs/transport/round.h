// One collective (or one send and its recv) of ranks that live in several processes, as one of
// these processes sees it: which members have come, what goes to and comes from each other process,
// and what is left to do. The members in this process meet here first; then the engine carries it
// out.
//
// Each piece of a sum is added up by one process, from all ranks' own numbers in the order of the
// group's ranks. So every rank gets the same bits, and the same as among threads of one process,
// whichever processes the ranks live in.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/backend.h"
#include "meshwright/process_link.h"

namespace mw::transport {

using comm::Cause;

// The members of a group and the processes in which they live, both by index in the group.
struct Members {
  std::string axis;
  std::vector<int> ranks;
  std::vector<int> process_of;
  int process = 0;  // number of this process
  // hash of the group: the same in all processes, different for other groups
  std::uint64_t key = 0;

  std::vector<int> of(int process) const;        // indices in the group of the process' members
  std::vector<int> ranks_of(int process) const;  // ranks of the process' members
  std::vector<int> processes() const;  // each process once, in the order of their first members
};

struct Arrival {
  bool here = false;
  comm::Call call;
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::vector<at::Tensor> tensors;  // kept alive until the round is over
};

// A pool of buffers into which other processes' inputs to sums are received.
class Scratch {
 public:
  std::vector<std::byte> take(std::size_t bytes);
  void give(std::vector<std::byte> memory);

 private:
  std::vector<std::vector<std::byte>> free_;
};

class Round : public Traffic {
 public:
  enum State : std::uint32_t { gathering, running, done, failed };

  // `name`: the round's number within its group, "collective 12". `far`: at least one member is in
  // a process that shares no memory with this process.
  Round(std::uint64_t id, std::shared_ptr<const Members> members, std::string name, bool far);

  const std::uint64_t id;
  const std::shared_ptr<const Members> members;
  const std::string name;

  State state() const { return static_cast<State>(state_.load(std::memory_order_seq_cst)); }
  bool is_over() const { return state() == done || state() == failed; }

  // Adds a member of this process. Called under the source's lock, while the round gathers. The
  // round fails if the calls of two members of this process do not agree.
  void arrive(int index, Arrival arrival);
  bool all_here() const { return here_ == own.size(); }

  // The functions from here to finish() are called by the engine alone.
  void lay_out(Scratch& scratch);
  // Takes the calls of another process' members. Fails the round if they do not agree with those of
  // the members here.
  void arrived(Peer& peer, std::uint32_t their_handle, const std::vector<comm::Call>& calls);
  // A piece of a stream has come whole: sums up blocks whose parts are complete. take_credit() says
  // how many more blocks other processes may send; credited() takes what another process allows.
  void came(Peer& peer, StreamKind kind);
  int take_credit();
  void credited(Peer& peer, std::int64_t blocks);
  bool complete() const;
  bool is_far() const { return far_; }
  // Called when all has been sent and received: lets go of the members' tensors, then wakes the
  // members.
  void finish(Scratch& scratch);
  // Fails the round; only the first call counts. Any thread may call it.
  void fail(const Problem& problem, Cause cause);
  [[noreturn]] void throw_failure() const { comm::throw_failure(problem_, cause_); }
  // Returns when the round is over or the deadline has passed.
  void wait_until(std::chrono::steady_clock::time_point deadline);

  std::vector<Arrival> arrivals;  // by index in the group; empty for members elsewhere
  std::vector<int> own;           // indices in the group of the members in this process
  std::string describe() const;   // the call of some member in this process, for messages
  int rank(int index) const { return members->ranks[static_cast<std::size_t>(index)]; }
  const Arrival& arrival(int index) const { return arrivals[static_cast<std::size_t>(index)]; }

 private:
  struct Block {  // the part of a reduction that one process sums up at a time
    int owner = 0;
    comm::Run run;
  };
  void refuse(int index, const comm::Call& call, int other, const comm::Call& other_call);
  void add_sum(const comm::Run& run);
  void add_block(const Block& block);
  void add_copy(const comm::Run& run);
  void await_parts(Scratch& scratch);
  // where the run begins in the outputs of the members here
  std::vector<std::byte*> outputs(const comm::Run& run) const;
  void sum(const Block& block, std::size_t number);
  std::byte* part_of(std::size_t block, int contributor) const;
  void set(State state);

  const bool far_;
  std::size_t here_ = 0;
  comm::Call call_;
  std::int64_t item_ = 1;
  std::vector<Block> owned_;  // the blocks that this process sums up
  std::size_t summed_ = 0;    // blocks of owned_ that are summed up
  std::size_t credit_ = 0;    // blocks that other processes have been allowed to send so far
  // by index in the group: number among the members elsewhere; -1: here
  std::vector<int> contributor_;
  std::int64_t block_bytes_ = 0;
  std::vector<std::byte> scratch_;

  std::atomic<std::uint32_t> state_{gathering};
  std::atomic<bool> failing_{false};
  Problem problem_;
  Cause cause_ = Cause::earlier;
};

}  // namespace mw::transport
