// What one instruction does on one rank: storages that it makes and lets go, collectives that it
// begins, and work. Memory, traffic and prices read it. It and the executor alone switch over all
// codes; some readers of programs ask for single ones (docs/architecture.md, "Programs").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/ledger.h"

namespace mw {

// Who keeps a storage alive.
struct Holder {
  enum class Kind : std::uint8_t {
    slot,
    pending,  // a move between its start and its wait
    scratch,  // the instruction alone: let go when it ends, if not before
    step,  // one instruction of the step makes it and another, for whichever microbatch, lets it go
  };
  Kind kind = Kind::slot;
  int index = 0;  // of slots, pendings; a scratch's number in its instruction
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
  Category category = Category::activations;  // or buffers, scratch, or host
};

// One collective and its sizes.
struct Transfer {
  Collective op = Collective::all_reduce;
  RankSet set;  // the ranks that take part; of send and recv the stage axis
  int ways = 1;
  std::int64_t wire = 0;     // bytes sent, as booked
  std::int64_t payload = 0;  // bytes of the larger of the rank's two buffers
  const char* phase = "";
  int times = 1;  // so often, one after the other
};
// What it is booked under.
CommunicationKey key_of(const Transfer& transfer, const Program& program);

// The keys of a program's transfers, numbered as they come: a name is written once for all that are
// booked under it.
class TransferKeys {
 public:
  explicit TransferKeys(const Program& program) : program_(program) {}
  std::size_t number(const Transfer& transfer);
  const CommunicationKey& key(std::size_t number) const { return keys_[number]; }
  std::size_t size() const { return keys_.size(); }

 private:
  struct Known {
    Collective op;
    RankSet set;
    std::string phase;
    std::size_t number;
  };
  const Program& program_;
  std::vector<Known> known_;
  std::vector<CommunicationKey> keys_;
};

// Local work: a roofline's terms.
struct LocalWork {
  int gemms = 0, calls = 0;  // kernels of matrices, and others
  double flops = 0;  // executed: at the rate of matrices if there are any, else of elementwise work
  double bytes = 0;  // read and written in the rank's memory
  double host = 0;   // bytes in host memory
  double link = 0;   // copied between the two while the rank waits
  double one_memory =
      0;  // read and written where both are one memory, and a HostCopy is made there
};

// A copy between the rank's device and host memory that goes on beside what it computes: one way
// after what went that way before, and after all that the rank has computed by then.
struct HostCopy {
  std::int64_t bytes = 0;  // 0: there is none
  // To host memory: once the copy that left before is awaited, unless both ends last.
  bool leaves = false;
  // On the device, awaited by whoever comes to its storage; but a transfer between slots that last
  // follows a copy of what it reads, and no one else waits.
  int device = -1;
  int host = -1;  // slot: what leaves is there before it comes back
};

// In this order: what it awaits, its work, its copy, what it begins.
struct Footprint {
  std::vector<MemoryEvent> memory;  // in order; Instruction::release comes after
  int awaits = -1;                  // a pending
  std::vector<LocalWork> work;
  // Where the host itself does the work, in its own order and beside what the device computes: the
  // slot in host memory that it reads, whose copies it awaits. -1: it does not.
  int on_host = -1;
  HostCopy host_copy;
  std::vector<Transfer> transfers;
  int begins = -1;  // the pending that `transfers` fly under; -1: each is awaited at once
  bool between_stages =
      false;             // the transfers are a send or a receive, whose times two clocks decide
  bool measured = true;  // of ops' scratch: none was estimated (engine/scratch.h)
  std::int64_t estimated = 0;  // bytes of it, at most, that are an estimate
  double executed() const;     // floating-point operations
};

// What a reader asks for: parts of a footprint, of which it pays for no others.
enum class Asks : std::uint8_t {
  memory = 1,
  scratch =
      2,     // what an op's kernels take while they run, which may be tried on this machine first
  work = 4,  // work, copies, transfers, and what they fly under
};
constexpr Asks operator|(Asks a, Asks b) {
  return static_cast<Asks>(static_cast<int>(a) | static_cast<int>(b));
}

// What the instruction does on the rank. A ring has what all its steps do, one after the other;
// what runs beside what is in the footprints of its steps (engine/program_facts.h).
Footprint footprint(const RankView& rank, const Instruction& instruction, Asks asks);
// The same into `made`, whatever was in it, for readers of many: lists are allocated once.
void footprint(const RankView& rank, const Instruction& instruction, Asks asks, Footprint& made);

// Whether such an instruction never begins a transfer: most are of a code that does not, and who
// only asks for transfers may pass them over.
bool sends_nothing(const Instruction& instruction);

}  // namespace mw
