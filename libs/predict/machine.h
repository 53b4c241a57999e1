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
  // What it occupies: transfers of one link go one after the other. Equal numbers, equal links.
  int link = 0;
  // Seconds that compute loses for each second of the transfer beside which it runs.
  double slows = 0;
  Basis basis = Basis::fitted;
};

// The machine as one rank has it. Not thread-safe.
class RankMachine {
 public:
  virtual ~RankMachine() = default;
  // What an instruction takes, without its transfers; `view` is that of the microbatch's size.
  virtual WorkTime work(const RankView& view, const Instruction& instruction,
                        const Footprint& made) = 0;
  virtual TransferCost transfer(const RankView& view, const Instruction& instruction,
                                const Transfer& transfer) = 0;
  // Seconds of a copy between the rank's device and host memory beside what it computes; 0: it has
  // one memory, and what is copied in it is in `work`.
  virtual double host_copy(double /*bytes*/) const { return 0; }
  // What a run of the segment does beside its instructions.
  virtual WorkTime beside(const RankView& /*view*/, const Segment& /*segment*/) { return {}; }
  // What a run takes whose instructions took the device so long, waits among them, and the host.
  virtual double run_seconds(double device, double /*host*/) const { return device; }
};

// The name of what an allocator holds idle, and gives back where there is no other room.
inline constexpr const char* reserve_name = "reserve";

// A device with memory of its own.
struct DeviceRoom {
  std::string name;        // empty where all devices are alike
  std::int64_t bytes = 0;  // of its memory
};

struct NamedBytes {
  std::string name;
  std::int64_t bytes = 0;
};

// The memory beside devices, which the ranks of a node share.
struct HostMemory {
  std::int64_t bytes = 0;  // of a node; 0: not known
  int ranks = 0;           // of a node; 0: `Machine::memory` is all that there is
};

class Machine {
 public:
  virtual ~Machine() = default;
  // "2 cores of AMD EPYC 7B13", "selene: 8 nodes of 8 A100-80GB; stack megatron-2022".
  virtual std::string name() const = 0;
  // This machine, with the CPU time of each rank's thread in place of wall time, whatever other
  // programs run: a step costs the sum over its ranks. Null: not known. It lives as long as this.
  virtual const Machine* by_core_seconds() const { return nullptr; }
  // By how much predicted steps err on average, as a share of them; 0: not known.
  virtual double error() const { return 0; }
  // How the times of computing on its devices are known.
  virtual Basis basis() const { return Basis::fitted; }
  // How many ranks it can hold; 0: as many as one likes.
  virtual std::int64_t room() const { return 0; }
  // `ranks`: of the plan that compute at the same time; `threads`: of each, 0: see threads_of.
  virtual std::unique_ptr<RankMachine> of_rank(const RankView& view, int ranks,
                                               int threads) const = 0;
  // Transfers run beside compute; else a rank carries out its own when it waits for them.
  virtual bool overlaps() const = 0;
  // Some ranks have other devices or links than others: slower ones, or of another kind.
  virtual bool uneven() const { return false; }
  // Splits each class of a program's ranks by devices that are alike, with one rank of each piece.
  virtual std::vector<std::vector<RankClass>> by_device(
      const Program& /*program*/, const std::vector<RankClass>& classes) const {
    std::vector<std::vector<RankClass>> all;
    for (const RankClass& one : classes) all.push_back({one});
    return all;
  }
  // A stage spends the time of a send or a receive on it, though it may be there already.
  virtual bool stages_wait() const = 0;
  // Threads that each of so many ranks computes with.
  virtual int threads_of(int ranks, int asked) const = 0;
  // Highest rate of matrix products of so many ranks together: what MFU is a fraction of.
  virtual double peak(int ranks, Dtype dtype, int threads) const = 0;
  // How many ranks take turns on a core; 1 where each has a device of its own.
  virtual double turns(int /*ranks*/, int /*threads*/) const { return 1; }
  // How much slower a stage of so many ranks runs while `active` stages compute than by itself.
  virtual double slowdown(int /*ranks*/, int /*threads*/, int /*active*/) const { return 1; }
  // What waiting for the slowest of so many ranks adds, as a factor.
  virtual double stragglers(int /*ranks*/) const { return 1; }
  // Bytes of memory for all ranks together (with what they keep in host memory), or of the device
  // of each rank: of the smallest one, where devices are not alike.
  virtual std::int64_t memory() const = 0;
  // The bytes of the largest device; and the device of a rank.
  virtual std::int64_t most_memory() const { return memory(); }
  virtual DeviceRoom device_of(int /*rank*/) const { return {"", memory()}; }
  virtual bool memory_together() const = 0;
  virtual HostMemory host() const { return {}; }
  // What of a plan the software that it is priced for cannot run, a phrase each.
  virtual std::vector<std::string> cannot_run(const PlanRequest& /*request*/) const { return {}; }
  // What calls of libraries' kernels allocate there; null: what they do on this machine.
  virtual const DeviceScratch* scratch() const { return nullptr; }
  // Bytes that a rank's libraries keep beside the program's tensors.
  virtual std::int64_t kept_by_libraries() const { return 0; }
  // What a device's driver would report for a rank beside the program's own bytes, which `memory`
  // has: a prediction of other software, and no part of any limit.
  virtual std::vector<NamedBytes> beside_program(const RankView& /*rank*/,
                                                 const MemoryForecast& /*memory*/) const {
    return {};
  }
  // How those bytes are known.
  virtual Basis beside_basis() const { return Basis::fitted; }
};

}  // namespace mw
