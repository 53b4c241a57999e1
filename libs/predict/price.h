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

// A part of a time that is no more than this share of it does not decide how the time is known.
inline constexpr double negligible_share = 0.05;

struct TransferTime {
  double seconds = 0;                // seconds that the transfers take
  double exposed = 0;                // seconds in which the rank did nothing else
  std::array<double, 3> by_basis{};  // `seconds` by how they are known

  // The worst basis of which more than `negligible_share` of the seconds are.
  Basis basis() const;
  void add(const TransferCost& cost);
  void add(const TransferTime& more, double times = 1);
};

struct StepTime {
  double step = 0;
  double compute = 0;        // seconds in ops, copies that nothing runs beside, and the optimizer
  double exposed = 0;        // seconds waiting for transfers
  TransferTime host_copies;  // copies to and from host memory beside compute
  // Updates by the host beside compute; what nothing hides of them is in `compute`.
  TransferTime host_updates;
  double idle = 0;  // seconds waiting for another stage
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
  // When the last run began each of its sends and receives between stages, in seconds since the run
  // began and in the order of its code.
  const std::vector<double>& between_stages() const;
  // When each lane of the last run began its first instruction and ended its last, in seconds since
  // the run began.
  const std::vector<std::pair<double, double>>& lanes() const;
  void idle_until(double time);
  // Books time that the rank spends on a transfer from another stage; `start` is the instruction
  // that begins the recv.
  void transferred(const Instruction& start, double seconds);
  double transfer_seconds(const Instruction& start, int microbatch) const;
  // Begins another step: from now on times() and kept() are those of this step alone. Transfers
  // that the last step left under way go on.
  void begin_step();
  StepTime times() const;
  // An instruction's time by this clock. keep_times() makes the Pricer keep these from then on.
  // `began_in` and `ended_in` number the runs of segments in which the time began and ended.
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

// A function that prices the instructions of programs that are still being made, for weaves that
// heed times (PlanRequest::seconds).
std::function<std::function<double(const Instruction&)>(const Program&)> seconds_on(
    std::shared_ptr<const Machine> machine, int threads = 0);

// How many steps to play so that the last one is like all later ones: two where a step leaves
// gathers of parameters under way for the next step, else one.
int steps_to_price(const Program& program);

// The step of a rank that waits for no other stage.
StepTime price_step(const RankView& rank, const Machine& machine, int threads = 0);

}  // namespace mw
