// The footprint of an instruction is what it does on one rank: storages allocated and freed,
// transfers begun, and work. Predictions of memory, traffic and time read footprints. Only the
// footprint and the executor switch over all instruction codes; some other readers of programs ask
// for single codes (docs/architecture.md, "Programs").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/ledger.h"

namespace mw {

// What keeps a storage alive.
struct Holder {
  enum class Kind : std::uint8_t {
    slot,
    pending,  // a move between its start and its wait
    scratch,  // one instruction: freed when it ends, if not before
    step,     // the step: one instruction makes the storage, and a later one frees it
  };
  Kind kind = Kind::slot;
  int index = 0;  // index of the slot or pending; for scratch, a number within the instruction
  friend auto operator<=>(const Holder&, const Holder&) = default;
};

struct MemoryEvent {
  enum class Kind : std::uint8_t {
    make,    // allocates a storage of `bytes`, held by `holder`
    share,   // `holder` also holds the storage of `of`; if `of` has none, as make
    ensure,  // as make, if `holder` has no storage yet
    release,
  };
  Kind kind = Kind::make;
  Holder holder, of;
  std::int64_t bytes = 0;
  Category category = Category::activations;  // activations, buffers, scratch or host
};

// One collective and its sizes.
struct Transfer {
  Collective op = Collective::all_reduce;
  RankSet set;               // the ranks that take part; for send and recv, the stage axis
  int ways = 1;              // the number of these ranks
  std::int64_t wire = 0;     // bytes that the rank sends, as the ledger counts them
  std::int64_t payload = 0;  // bytes of the larger of the rank's two buffers
  const char* phase = "";
  int times = 1;  // how often the transfer is made, one after the other
};
// The ledger's key for a transfer.
CommunicationKey key_of(const Transfer& transfer, const Program& program);

// Numbers the ledger keys of a program's transfers, in the order in which they are asked for, so
// that the strings of each key are made once.
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

// The terms of the roofline of an instruction's local work.
struct LocalWork {
  int gemms = 0, calls = 0;  // calls of matrix kernels, and of other kernels
  double flops = 0;          // executed FLOPs, at the rate of matrix products if gemms > 0
  double bytes = 0;          // bytes read and written in the rank's memory
  double host = 0;           // bytes read and written in host memory
  double link = 0;           // bytes copied between the two memories while the rank waits
  // Bytes that a HostCopy reads and writes on a device that shares its memory with the host.
  double one_memory = 0;
};

// An asynchronous copy between the rank's device and host memory. It begins after all that the rank
// has computed so far, and after earlier copies in the same direction.
struct HostCopy {
  std::int64_t bytes = 0;  // 0: there is none
  // Whether the copy goes to host memory. It then begins once the copy that left before was
  // awaited, unless both slots are persistent.
  bool leaves = false;
  // The slot on the device. An instruction that uses its storage waits for the copy; but a transfer
  // between persistent slots is queued behind a copy of what it reads, and the rank does not wait.
  int device = -1;
  int host = -1;  // the slot in host memory: a copy to it ends before a copy from it begins
};

// What one instruction does on one rank, in this order: it waits, works, copies, begins transfers.
struct Footprint {
  std::vector<MemoryEvent> memory;  // in order, before the releases of Instruction::release
  int awaits = -1;                  // the pending that it waits for; -1: none
  std::vector<LocalWork> work;
  // The slot in host memory that the host's own work reads, and for whose copies it waits; such
  // work runs in order on the host, beside what the device computes. -1: the device does the work.
  int on_host = -1;
  HostCopy host_copy;
  std::vector<Transfer> transfers;
  int begins = -1;  // the pending under which `transfers` run; -1: each is awaited at once
  // Whether the transfers are a send or a receive: then two stages' clocks decide their times.
  bool between_stages = false;
  bool measured = true;        // whether no scratch of ops is an estimate (engine/scratch.h)
  std::int64_t estimated = 0;  // the most bytes of scratch that are an estimate
  double executed() const;     // floating-point operations of all `work`
};

// The parts of a footprint that a reader wants; others are not computed.
enum class FootprintParts : std::uint8_t {
  memory = 1,
  scratch = 2,  // scratch of the op's kernels, which may be measured on this machine first
  work = 4,     // work, host copies, transfers, and the pendings
};
constexpr FootprintParts operator|(FootprintParts a, FootprintParts b) {
  return static_cast<FootprintParts>(static_cast<int>(a) | static_cast<int>(b));
}

// The footprint of an instruction on the rank. For a ring, all its steps one after the other; the
// footprints of ring_steps() (engine/program_facts.h) say which work and transfers overlap.
Footprint footprint(const RankView& rank, const Instruction& instruction, FootprintParts asks);
// As above, but overwrites `made`, whose lists keep their storage from call to call.
void footprint(const RankView& rank, const Instruction& instruction, FootprintParts asks,
               Footprint& made);

// Whether an instruction begins no transfer, by its code alone: a quick test for readers that only
// look for transfers.
bool sends_nothing(const Instruction& instruction);

}  // namespace mw
