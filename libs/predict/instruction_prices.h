// Prices each instruction of a rank's program once, for the clock that then plays them (price.h).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/rank_view.h"
#include "predict/host_lanes.h"
#include "predict/machine.h"

namespace mw {

struct TimedTransfer {
  TransferCost cost;
  int key = -1;  // number of the transfer's communication key
  // Number of the group of ranks that take part: a group's transfers go in order. The transfers of
  // a stream are a group of their own, with a number below -1.
  int group = -1;
  int stream = -1;  // Move::stream
};
struct PricedCopy {
  HostCopy copy;  // none where its bytes are 0
  double seconds = 0;
};
struct PricedInstruction {
  int lane = 0;  // lane of a braid that the instruction belongs to
  // The transfer that it awaits or begins belongs to no microbatch (between_lasting).
  bool of_step = false;
  int awaits = -1, begins = -1;
  std::vector<int> copied;  // storages whose host copies the instruction awaits
  int follows = -1;         // storage whose host copies its transfer awaits; -1: none
  double before = 0;        // compute seconds, after what it awaits and before what it begins
  // Seconds of work that the host does in place of the device, on a lane of its own.
  double on_host = 0;
  std::vector<int> there;  // slots in host memory whose copies the host's work awaits
  // The host waits until the device has come to this instruction.
  bool host_waits = false;
  PricedCopy copy;                       // the copy before the transfers
  std::vector<TimedTransfer> transfers;  // transfers that the instruction begins
  bool between_stages = false;
  double executed = 0;
  double host = 0;  // seconds of the host to launch it
};
// The priced instructions of all steps of a ring. Rings whose ops cost the same share them.
struct PricedRing {
  std::vector<PricedInstruction> code;
  double host = 0;
};
struct PricedSegment {
  // Priced instructions; of a ring only what the ring awaits.
  std::vector<PricedInstruction> code;
  std::vector<std::pair<std::size_t, int>> rings;  // index in `code`, and number of the ring
  WorkTime beside;                                 // work of a run beside its instructions
  double host = 0;                                 // seconds of the host to launch the instructions
  bool on_host = false;                            // the host works or waits in the segment
};

// Not thread-safe.
class InstructionPrices {
 public:
  // `ranks`, `threads`: see Machine::of_rank. The referenced objects must outlive this one.
  InstructionPrices(const RankView& rank, const Machine& machine, const HostLanes& lanes, int ranks,
                    int threads);

  // The kinds of the microbatches that a run is for (RankViews::kind), one for each lane.
  using Kinds = Few<int, 3>;
  Kinds kinds(const SegmentRun& run) const;
  const PricedSegment& segment(int segment, const Kinds& kinds);
  const PricedRing& ring(int number) const { return rings_[static_cast<std::size_t>(number)]; }
  // Seconds of an instruction by itself, with the transfers and the copy that it begins.
  double seconds(const Instruction& instruction);
  // The price of a send or a receive between stages.
  double transfer_seconds(const Instruction& instruction, int kind) const;
  int key_of(const Instruction& start);
  double run_seconds(double device, double host) const {
    return machine_->run_seconds(device, host);
  }

  const RankViews& ranks() const { return ranks_; }
  const TransferKeys& keys() const { return keys_; }

 private:
  const PricedSegment* priced_original(const Segment& segment, const Kinds& kinds) const;
  PricedSegment price(const Segment& segment, const Kinds& kinds);
  WorkTime beside(const Segment& segment, const Kinds& kinds);
  PricedInstruction price(const Instruction& instruction);
  int ring_of(const Instruction& ring);
  PricedRing price_ring(const Instruction& ring);

  const RankViews ranks_;
  const RankView* rank_;  // the rank's view for the microbatch that is being priced
  const Program& program_;
  const HostLanes& lanes_;
  TransferKeys keys_;
  std::map<RankSet, int> groups_;
  const std::unique_ptr<RankMachine> machine_;
  // Ranks have devices of their own, beside which the host works.
  const bool overlaps_;
  // The program has updates for the host to make.
  const bool host_works_;
  std::map<std::pair<int, Kinds>, PricedSegment> priced_;  // by segment and kinds of microbatches
  std::map<std::tuple<const RankView*, std::string, std::vector<int>>, int> ring_numbers_;
  std::vector<PricedRing> rings_;
  Footprint made_;  // footprint of the instruction that is being priced
};

}  // namespace mw
