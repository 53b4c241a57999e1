// What one instruction does on one rank: storages that it makes and lets go, collectives that it begins, and
// work. Memory, traffic, prices and listings read it; but for the executor, which does it, nothing else asks
// what an instruction's code means.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/ledger.h"
#include "program/rank_view.h"

namespace mw {

// What the optimizer keeps for one element of a parameter, in bytes, its master copy included: of matrices
// (Bucket::matrix), and of all others.
struct StateBytes {
  StateBytes() = default;
  StateBytes(std::int64_t all) : others(all), matrices(all) {}  // NOLINT: where it treats all alike
  StateBytes(std::int64_t other, std::int64_t matrix) : others(other), matrices(matrix) {}
  std::int64_t others = 0, matrices = 0;
};

// Who keeps a storage alive.
struct Holder {
  enum class Kind : std::uint8_t {
    slot,
    pending,     // a move between its start and its wait
    parameters,  // of a bucket: its whole parameters, where only a shard is stored
    gradients,   // of a bucket: its whole gradients, likewise
    scratch,     // the instruction alone: let go when it ends, if not before
    step,  // one instruction of the step makes it and another, for whichever microbatch, lets it go
  };
  Kind kind = Kind::slot;
  int index = 0;  // of slots, pendings, buckets; a scratch's number in its instruction
  friend auto operator<=>(const Holder&, const Holder&) = default;
};

struct MemoryEvent {
  enum class Kind : std::uint8_t {
    make,    // a storage of `bytes`, held by `holder`
    share,   // `holder` holds what `of` holds; where that is nothing, a storage of its own is made
    ensure,  // make, unless it holds one
    release,
  };
  Kind kind = Kind::make;
  Holder holder, of;
  std::int64_t bytes = 0;
  Category category = Category::activations;  // or buffers, or host
};

// One collective: what it is booked under, and its sizes.
struct Transfer {
  CommunicationKey key;
  Collective op = Collective::all_reduce;
  RankSet set;  // the ranks that take part; of send and recv the stage axis
  int ways = 1;
  std::int64_t wire = 0;     // bytes sent, as booked
  std::int64_t payload = 0;  // bytes of the larger of the rank's two buffers
};

// Local work: a roofline's terms.
struct LocalWork {
  int gemms = 0, calls = 0;  // kernels of matrices, and others
  double flops = 0;  // executed: at the rate of matrices if there are any, else of elementwise work
  double bytes = 0;  // read and written in the rank's memory
  double host = 0;   // ... in host memory
  double link = 0;   // copied between the two
  bool one_memory_copies = false;  // where both are one memory, `link` is copied in it all the same
};

// Transfers that are awaited together: a move's, or those of a bucket.
struct Flight {
  enum class Of : std::uint8_t { move, reduction, shard_reduction, gather };
  Of of = Of::move;
  int index = 0;  // pending or bucket
  friend auto operator<=>(const Flight&, const Flight&) = default;
};

// In this order: what it awaits, its work, what it begins.
struct Footprint {
  std::vector<MemoryEvent> memory;  // in order; Instruction::release comes after
  std::optional<Flight> awaits;
  std::vector<LocalWork> work;
  std::vector<Transfer> transfers;
  std::optional<Flight> begins;  // what `transfers` fly under; nothing: each is awaited at once
  bool between_stages =
      false;                // the transfers are a send or a receive, whose times two clocks decide
  bool measured = true;     // of ops' scratch: none was estimated (program/scratch.h)
  double executed() const;  // floating-point operations
};

// `scratch`: with what an op's kernels take while they run, which may be tried on this machine first.
Footprint footprint(const RankView& rank, const Instruction& instruction, StateBytes state = {},
                    bool scratch = false);

}  // namespace mw
