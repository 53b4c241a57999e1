// Adds up what a rank sends in a step, from the footprints of its instructions.
#include "meshwright/engine/traffic.h"

#include <utility>
#include <vector>

#include "meshwright/engine/footprint.h"

namespace mw {

Traffic forecast_traffic(const RankView& rank) {
  const Program& program = rank.program();
  const RankViews ranks(rank);
  std::map<std::pair<int, int>, std::int64_t> runs;  // of segments, by kind of microbatch
  for (const SegmentRun& action : program.timeline)
    ++runs[{action.segment, ranks.kind(action.microbatch)}];
  TransferKeys keys(program);
  std::vector<CommunicationUse> uses;  // by the key's number
  Footprint made;
  for (const auto& [what, times] : runs) {
    for (const Instruction& i : program.segments[what.first].code) {
      if (sends_nothing(i)) continue;
      footprint(ranks.of_kind(what.second), i, Asks::work, made);
      for (const Transfer& transfer : made.transfers) {
        const std::size_t number = keys.number(transfer);
        if (uses.size() <= number) uses.resize(number + 1);
        CommunicationUse& use = uses[number];
        use.calls += times * transfer.times;
        use.bytes += times * transfer.times * transfer.wire;
      }
    }
  }
  Traffic traffic;
  for (std::size_t k = 0; k < uses.size(); ++k) traffic[keys.key(k)] = uses[k];
  return traffic;
}

void take_most(Traffic& most, const Traffic& other) {
  for (const auto& [key, use] : other) {
    CommunicationUse& known = most[key];
    if (std::pair(use.bytes, use.calls) > std::pair(known.bytes, known.calls)) known = use;
  }
}

}  // namespace mw
