// What work and transfers cost: the machine that a plan is priced for. There are two, cores that
// ranks share as threads of one machine, and a cluster of devices and links; nothing asks which.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/forecast.h"
#include "meshwright/engine/rank_view.h"

namespace mw {

struct PlanRequest;

// How a time is known: it was measured in this very case; it is worked out with constants that were
// fitted to measured steps; or it lies beyond all that was measured and fitted. The worst is last.
enum class Basis : std::uint8_t { measured, fitted, beyond };
const char* name_of(Basis basis);

// Seconds of a rank's own work: of its device, and of the host that launches it, which runs ahead.
struct WorkTime {
  double seconds = 0, host = 0;
};

// Seconds of a collective, a send or a receive.
struct TransferCost {
  double seconds = 0;
  // The link that the transfer occupies: transfers of one link go one after the other.
  int link = 0;
  // Seconds that compute loses for each second of the transfer beside which it runs.
  double slows = 0;
  Basis basis = Basis::fitted;
};

// Prices the instructions of one rank on a machine. Not thread-safe.
class RankMachine {
 public:
  virtual ~RankMachine() = default;
  // Seconds of an instruction without its transfers; `view` is the rank's view for the microbatch's
  // size.
  virtual WorkTime work(const RankView& view, const Instruction& instruction,
                        const Footprint& made) = 0;
  virtual TransferCost transfer(const RankView& view, const Instruction& instruction,
                                const Transfer& transfer) = 0;
  // Seconds of a copy between the rank's device and host memory beside what it computes; 0 where
  // both are one memory: copies within it are priced in work().
  virtual double host_copy(double /*bytes*/) const { return 0; }
  // Work of a run of the segment beside its instructions.
  virtual WorkTime beside(const RankView& /*view*/, const Segment& /*segment*/) { return {}; }
  // Seconds of a run whose instructions take the device and the host these seconds; the device's
  // include waits.
  virtual double run_seconds(double device, double /*host*/) const { return device; }
};

// The name of what an allocator holds idle, and gives back where there is no other room.
inline constexpr const char* reserve_name = "reserve";

// A device with memory of its own.
struct DeviceRoom {
  std::string name;        // empty where all devices are alike
  std::int64_t bytes = 0;  // bytes of the device's memory
};

struct NamedBytes {
  std::string name;
  std::int64_t bytes = 0;
};

// Host memory beside the devices' memory, which the ranks of a node share.
struct HostMemory {
  std::int64_t bytes = 0;  // bytes of a node; 0: not known
  int ranks = 0;           // ranks of a node; 0: Machine::memory is all memory that there is
};

class Machine {
 public:
  virtual ~Machine() = default;
  // The machine in words: "2 cores of AMD EPYC 7B13", "selene: 8 nodes of 8 A100-80GB; stack
  // megatron-2022".
  virtual std::string name() const = 0;
  // This machine with the CPU time of each rank's thread in place of wall time, whatever other
  // programs run: a step costs the sum over its ranks. Null where CPU times are not known. It lives
  // as long as this object.
  virtual const Machine* by_core_seconds() const { return nullptr; }
  // By how much predicted steps err on average, as a share of them; 0: not known.
  virtual double error() const { return 0; }
  // How the times of computing on its devices are known.
  virtual Basis basis() const { return Basis::fitted; }
  // How many ranks the machine can hold; 0: any number.
  virtual std::int64_t room() const { return 0; }
  // Makes the prices of one rank. `ranks`: how many of the plan's ranks compute at the same time;
  // `threads`: threads of each rank (0: see threads_of).
  virtual std::unique_ptr<RankMachine> of_rank(const RankView& view, int ranks,
                                               int threads) const = 0;
  // Whether transfers run beside compute; else a rank carries out its transfers when it waits for
  // them.
  virtual bool overlaps() const = 0;
  // Whether some ranks have other devices or links than others: slower ones, or of another kind.
  virtual bool uneven() const { return false; }
  // Splits each class of a program's ranks by devices that are alike; `at` of each piece is one of
  // its ranks.
  virtual std::vector<std::vector<RankClass>> by_device(
      const Program& /*program*/, const std::vector<RankClass>& classes) const {
    std::vector<std::vector<RankClass>> all;
    for (const RankClass& one : classes) all.push_back({one});
    return all;
  }
  // Whether a stage spends the time of each send and receive, even if the message is already there.
  virtual bool stages_wait() const = 0;
  // Threads that each of `ranks` ranks computes with, where `asked` were asked for (0: none).
  virtual int threads_of(int ranks, int asked) const = 0;
  // Highest rate of matrix products of `ranks` ranks together: what MFU is a fraction of.
  virtual double peak(int ranks, Dtype dtype, int threads) const = 0;
  // How many ranks take turns on a core; 1 where each has a device of its own.
  virtual double turns(int /*ranks*/, int /*threads*/) const { return 1; }
  // How much slower a stage of `ranks` ranks runs while `active` stages compute than by itself.
  virtual double slowdown(int /*ranks*/, int /*threads*/, int /*active*/) const { return 1; }
  // The factor by which waiting for the slowest of `ranks` ranks lengthens a step.
  virtual double stragglers(int /*ranks*/) const { return 1; }
  // Bytes of memory for all ranks together, host memory included, where memory_together(); else of
  // each rank's device: of the smallest one, where devices are not alike.
  virtual std::int64_t memory() const = 0;
  // The bytes of the largest device (most_memory), and the device of a rank (device_of).
  virtual std::int64_t most_memory() const { return memory(); }
  virtual DeviceRoom device_of(int /*rank*/) const { return {"", memory()}; }
  virtual bool memory_together() const = 0;
  virtual HostMemory host() const { return {}; }
  // What of a plan the machine's software cannot run, one phrase each.
  virtual std::vector<std::string> cannot_run(const PlanRequest& /*request*/) const { return {}; }
  // What library kernels allocate on the machine's devices; null: as much as on this machine.
  virtual const DeviceScratch* scratch() const { return nullptr; }
  // Bytes that a rank's libraries keep beside the program's tensors.
  virtual std::int64_t kept_by_libraries() const { return 0; }
  // What a device's driver would report for a rank beside the program's own bytes, which `memory`
  // has: a prediction of other software, and no part of any limit.
  virtual std::vector<NamedBytes> beside_program(const RankView& /*rank*/,
                                                 const MemoryForecast& /*memory*/) const {
    return {};
  }
  // How the bytes of beside_program() are known.
  virtual Basis beside_basis() const { return Basis::fitted; }
};

}  // namespace mw
