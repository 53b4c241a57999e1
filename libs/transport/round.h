// One collective (or one send and its recv) of ranks that live in several processes, as one of
// these processes has it: who is there, what goes to and comes from each other process, and what is
// left to do. The members in this process meet here first; then the engine carries it out.
//
// A sum is taken in the order of the group's ranks, by one process for each piece of it, of all
// ranks' own numbers: the same bits on every rank, and the same as among threads of one process,
// however ranks lie on processes.
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
  int process = 0;        // this one
  std::uint64_t key = 0;  // the same in all processes, and another for another group

  std::vector<int> of(int process) const;        // indices of the members there
  std::vector<int> ranks_of(int process) const;  // and their ranks
  std::vector<int> processes() const;            // in the order of their first members
};

struct Arrival {
  bool here = false;
  comm::Call call;
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::vector<at::Tensor> tensors;  // keeps them until nobody touches them
};

// Memory for parts of sums, used again and again.
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

  // Called under the lock of the source, while the round gathers. The round fails if the calls of
  // two members of this process do not agree.
  void arrive(int index, Arrival arrival);
  bool all_here() const { return here_ == own.size(); }

  // By the engine alone, from here on.
  void lay_out(Scratch& scratch);
  // What another process says that its members called. Fails the round if it does not agree.
  void arrived(Peer& peer, std::uint32_t their_handle, const std::vector<comm::Call>& calls);
  // A piece of a stream has come whole. Sums up what is complete, and tells how many blocks the
  // other processes may send more.
  void came(Peer& peer, StreamKind kind);
  int take_credit();
  void credited(Peer& peer, std::int64_t blocks);
  bool complete() const;
  bool is_far() const { return far_; }
  // All has gone and come: lets go of the members' tensors, then wakes the members.
  void finish(Scratch& scratch);
  // The first call counts. Any thread.
  void fail(const Problem& problem, Cause cause);
  [[noreturn]] void throw_failure() const { comm::throw_failure(problem_, cause_); }
  // Returns when it has ended, or the time has come.
  void wait_until(std::chrono::steady_clock::time_point deadline);

  std::vector<Arrival> arrivals;  // by index; of members here
  std::vector<int> own;           // indices of members here
  std::string describe() const;   // what some member here called
  int rank(int index) const { return members->ranks[static_cast<std::size_t>(index)]; }
  const Arrival& arrival(int index) const { return arrivals[static_cast<std::size_t>(index)]; }

 private:
  struct Block {  // of a reduction: what one process sums up at a time
    int owner = 0;
    comm::Run run;
  };
  void refuse(int index, const comm::Call& call, int other, const comm::Call& other_call);
  void add_sum(const comm::Run& run);
  void add_block(const Block& block);
  void add_copy(const comm::Run& run);
  void await_parts(Scratch& scratch);
  std::vector<std::byte*> outputs(const comm::Run& run) const;  // here, where the run begins
  void sum(const Block& block, std::size_t number);
  std::byte* part_of(std::size_t block, int contributor) const;
  void set(State state);

  const bool far_;
  std::size_t here_ = 0;
  comm::Call call_;
  std::int64_t item_ = 1;
  std::vector<Block> owned_;      // in this process
  std::size_t summed_ = 0;        // of these
  std::size_t credit_ = 0;        // given so far, blocks
  std::vector<int> contributor_;  // by index: place among the members elsewhere; -1: here
  std::int64_t block_bytes_ = 0;
  std::vector<std::byte> scratch_;

  std::atomic<std::uint32_t> state_{gathering};
  std::atomic<bool> failing_{false};
  Problem problem_;
  Cause cause_ = Cause::earlier;
};

}  // namespace mw::transport
