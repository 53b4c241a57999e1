// Adds up what a rank sends in a step, from the footprints of its instructions.
#include "program/traffic.h"

#include <utility>

#include "program/footprint.h"

namespace mw {

Traffic forecast_traffic(const RankView& rank) {
  const Program& program = rank.program();
  const RankViews ranks(rank);
  std::map<std::pair<int, int>, std::int64_t> runs;  // of segments, by kind of microbatch
  for (const SegmentRun& action : program.timeline)
    ++runs[{action.segment, ranks.kind(action.microbatch)}];
  Traffic traffic;
  for (const auto& [what, times] : runs) {
    for (const Instruction& i : program.segments[what.first].code) {
      if (sends_nothing(i)) continue;
      for (const Transfer& transfer :
           footprint(ranks.of_kind(what.second), i, Asks::work).transfers) {
        CommunicationUse& use = traffic[key_of(transfer, program)];
        use.calls += times * transfer.times;
        use.bytes += times * transfer.times * transfer.wire;
      }
    }
  }
  return traffic;
}

}  // namespace mw
