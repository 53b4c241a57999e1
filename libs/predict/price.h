// Prices a step: seconds of each instruction on a machine, and a timeline of one rank in which
// transfers, and copies to and from host memory, are begun and awaited.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/instruction_time.h"
#include "predict/machine.h"

namespace mw {

// Parts of a time that make no more than this share of it do not decide how it is known.
inline constexpr double negligible_share = 0.05;

struct TransferTime {
  double seconds = 0;                // that the transfers take
  double exposed = 0;                // seconds in which the rank did nothing else
  std::array<double, 3> by_basis{};  // `seconds` by how they are known

  // The worst basis of which more than `negligible_share` of the seconds are.
  Basis basis() const;
  void add(const TransferCost& cost);
  void add(const TransferTime& more, double times = 1);
};

struct StepTime {
  double step = 0;
  double compute = 0;         // in ops, copies in their order and the optimizer
  double exposed = 0;         // waiting for transfers
  TransferTime host_copies;   // to and from host memory beside what the rank computes
  TransferTime host_updates;  // by the host beside it; what nothing hides of them is in `compute`
  double idle = 0;            // neither: waiting for another stage
  std::map<CommunicationKey, TransferTime> transfers;
  double executed = 0;  // floating-point operations that the rank really does
};

// One rank's clock through its program. Work is priced once for each instruction of a segment and
// once for each run of a segment whose start finds no transfer under way, so it does not grow with
// microbatches.
class Pricer {
 public:
  // `ranks`, `threads`: see Machine::of_rank.
  Pricer(const RankView& rank, const Machine& machine, int ranks, int threads);
  Pricer(Pricer&&) noexcept;
  ~Pricer();

  // Runs a segment. Transfers between stages take no time here: whoever knows both clocks adds it.
  void play(const SegmentRun& run);
  double clock() const;
  // How long after its begin the run that was played last begins each of its sends and receives
  // between stages, in the order of its code.
  const std::vector<double>& between_stages() const;
  // How long after its begin each lane of that run begins its first instruction and ends its last.
  const std::vector<std::pair<double, double>>& lanes() const;
  void idle_until(double time);
  // Time that the rank spends on a transfer from another stage; `start` is that of a recv.
  void transferred(const Instruction& start, double seconds);
  double transfer_seconds(const Instruction& start, int microbatch) const;
  // Begins another step: from now on times() and kept() are those of this step alone. Transfers
  // that the last step left under way go on.
  void begin_step();
  StepTime times() const;
  // From now on the times of instructions are kept, by this clock; `run` counts the runs of
  // segments, in which a time began and ended.
  struct Kept {
    InstructionTime time;
    std::size_t began_in = 0, ended_in = 0;
    int link = -1;  // of a transfer: TransferCost::link
  };
  void keep_times();
  const std::vector<Kept>& kept() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// What instructions take on the machine, of programs that are still being made: for weaves that
// heed times (PlanRequest::seconds).
std::function<std::function<double(const Instruction&)>(const Program&)> seconds_on(
    std::shared_ptr<const Machine> machine, int threads = 0);

// How many steps to play so that the last one is as any but the first: two where one leaves gathers
// of parameters under way for the next.
int steps_to_price(const Program& program);

// The step of a rank that waits for no other stage.
StepTime price_step(const RankView& rank, const Machine& machine, int threads = 0);

}  // namespace mw
