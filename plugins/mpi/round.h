// One collective (or one send and its recv) of ranks that live in several processes, as one of
// these processes has it: who is there, what goes to and comes from each other process, and what is
// left to do. The members in this process meet here first; then the engine carries it out.
//
// A sum is taken in the order of the group's ranks, by one process for each piece of it, of all
// ranks' own numbers: the same bits on every rank, and the same as among threads of one process,
// however ranks lie on processes.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/backend.h"

namespace mpi {

// The members of a group and the processes in which they live, both by index in the group.
struct Members {
  std::string axis;
  std::vector<int> ranks;
  std::vector<int> process_of;
  int process = 0;        // this one
  std::uint64_t key = 0;  // the same in all processes, and another for another group

  std::vector<int> of(int process) const;        // indices of the members there
  std::vector<int> ranks_of(int process) const;  // and their ranks
};

// Bytes that go to or come from another process, piece by piece. Both sides cut them alike.
struct Piece {
  std::byte* at = nullptr;
  std::int64_t bytes = 0;
  // Where what comes goes besides: to other members of this process.
  std::vector<std::byte*> more;
};
struct Stream {
  std::vector<Piece> pieces;
  std::size_t done = 0;     // pieces that have gone or come
  std::int64_t offset = 0;  // of the piece after these
  std::size_t allowed = 0;  // out: pieces that may go by now
  // Between machines: transfers that MPI has under way, of the pieces after `done`.
  std::deque<MPI_Request> requests;

  bool through() const { return done == pieces.size(); }
};

// What a stream holds: numbers as they are, or parts of sums, for the process that sums them up.
enum StreamKind : std::uint32_t { plain, parts };

enum class Cause : std::uint8_t { earlier, absence, itself };

struct Arrival {
  bool here = false;
  mw::comm::Call call;
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

class Round {
 public:
  enum State : std::uint32_t { gathering, running, done, failed };

  // `name`: which one it is among the group's, "collective 12". `far`: some member is on another
  // machine.
  Round(std::uint64_t id, std::shared_ptr<const Members> members, std::string name, bool far);

  struct Peer {  // another process with members
    int process = 0;
    std::vector<int> members;
    bool arrived = false;
    std::uint32_t handle = 0;  // by which it knows the round
    Stream out[2], in[2];
  };

  const std::uint64_t id;
  const std::shared_ptr<const Members> members;
  const std::string name;
  std::uint32_t handle = 0;  // by which this process knows it

  State state() const { return static_cast<State>(state_.load(std::memory_order_seq_cst)); }

  // Under the lock of the source, while it gathers. False if the call does not agree with that of
  // another member here: the round has failed then.
  bool arrive(int index, Arrival arrival);
  bool all_here() const { return here_ == own.size(); }

  // By the engine alone, from here on.
  void lay_out(Scratch& scratch);
  // What another process says that its members called. False if it does not agree.
  bool arrived(Peer& peer, std::uint32_t their_handle, const std::vector<mw::comm::Call>& calls);
  // A piece of a stream has come whole. Sums up what is complete, and tells how many blocks the
  // other processes may send more.
  void came(Peer& peer, StreamKind kind);
  int take_credit();
  void credited(Peer& peer, std::int64_t blocks);
  // Pieces that may be received by now: memory for parts is used in turn.
  std::size_t receivable(const Peer& peer, StreamKind kind) const;
  bool complete() const;
  bool between_machines() const { return far_; }
  // All has gone and come: lets go of the members' tensors, then wakes the members.
  void finish(Scratch& scratch);
  // Transfers that MPI has under way: their memory must stay.
  bool in_flight() const;
  // The first call counts. Any thread.
  void fail(const mw::Problem& problem, Cause cause);
  [[noreturn]] void throw_failure() const;
  // Returns when it has ended, or the time has come.
  State wait_until(std::chrono::steady_clock::time_point deadline);

  std::vector<Arrival> arrivals;  // by index; of members here
  std::vector<int> own;           // indices of members here
  std::vector<Peer> peers;
  Peer* peer_of(int process);
  std::string describe() const;  // what some member here called

 private:
  struct Block {  // of a reduction: what one process sums up at a time
    int owner = 0;
    std::int64_t in = 0, count = 0, out = 0;  // elements
    int target = -1;                          // index of the member that gets it; -1: all
  };
  void add_sums();
  void add_copies();
  void local_copies();
  void sum(const Block& block, std::size_t number);
  std::size_t window() const;
  std::byte* part_of(std::size_t block, int contributor) const;
  void set(State state);

  const bool far_;
  std::size_t here_ = 0;
  mw::comm::Call call_;
  std::int64_t item_ = 1;
  std::vector<Block> owned_;      // in this process
  std::size_t summed_ = 0;        // of these
  std::size_t credit_ = 0;        // given so far, blocks
  std::vector<int> contributor_;  // by index: place among the members elsewhere; -1: here
  std::int64_t block_bytes_ = 0;
  std::vector<std::byte> scratch_;

  std::atomic<std::uint32_t> state_{gathering};
  std::atomic<bool> failing_{false};
  mw::Problem problem_;
  Cause cause_ = Cause::earlier;
};

}  // namespace mpi
