// What each instruction of a program takes on one rank, priced once: for a clock to play.
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
  int key = -1;  // number of the collective's key
  // Number of the ranks that take part: transfers of a group go in their order. Those of a stream
  // are a group of their own, with a number below -1.
  int group = -1;
  int stream = -1;  // Move::stream
};
struct PricedCopy {
  HostCopy copy;  // bytes 0: none
  double seconds = 0;
};
struct PricedInstruction {
  int lane = 0;          // of a braid: which lane
  bool of_step = false;  // what it awaits or begins belongs to no microbatch (between_lasting)
  int awaits = -1, begins = -1;
  std::vector<int> copied;  // storages of which it awaits copies
  int follows = -1;         // the storage of which its transfer awaits copies
  double before = 0;        // compute seconds, between what it awaits and what it begins
  double on_host = 0;       // seconds that the host works on it instead, on a lane of its own
  std::vector<int> there;   // slots in host memory: that work awaits their copies
  bool host_waits = false;  // the host waits until the device has come to this instruction
  PricedCopy copy;          // the copy before the transfers
  std::vector<TimedTransfer> transfers;  // that the instruction begins
  bool between_stages = false;
  double executed = 0;
  double host = 0;  // seconds of the host that launches it
};
// All steps of a ring, which are the same wherever ops are alike.
struct PricedRing {
  std::vector<PricedInstruction> code;
  double host = 0;
};
struct PricedSegment {
  std::vector<PricedInstruction> code;             // of a ring: what it awaits
  std::vector<std::pair<std::size_t, int>> rings;  // which of `code`, and the ring's number
  WorkTime beside;                                 // what a run does beside its instructions
  double host = 0;                                 // seconds of the host that launches them
  bool on_host = false;                            // the host works or waits in it
};

// Not thread-safe.
class InstructionPrices {
 public:
  // `ranks`, `threads`: see Machine::of_rank. All are kept by reference.
  InstructionPrices(const RankView& rank, const Machine& machine, const HostLanes& lanes, int ranks,
                    int threads);

  // The kinds of the microbatches that a run is for (RankViews::kind), one for each lane.
  using Kinds = Few<int, 3>;
  Kinds kinds(const SegmentRun& run) const;
  const PricedSegment& segment(int segment, const Kinds& kinds);
  const PricedRing& ring(int number) const { return rings_[static_cast<std::size_t>(number)]; }
  // What an instruction takes by itself, with all that it begins and copies.
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
  const RankView* rank_;  // of the microbatch that is priced
  const Program& program_;
  const HostLanes& lanes_;
  TransferKeys keys_;
  std::map<RankSet, int> groups_;
  const std::unique_ptr<RankMachine> machine_;
  const bool overlaps_;    // ranks have devices of their own, and the host works beside these
  const bool host_works_;  // the program has such work for the host
  std::map<std::pair<int, Kinds>, PricedSegment> priced_;  // by segment and kinds of microbatches
  std::map<std::tuple<const RankView*, std::string, std::vector<int>>, int> ring_numbers_;
  std::vector<PricedRing> rings_;
  Footprint made_;  // of the instruction that is priced
};

}  // namespace mw
