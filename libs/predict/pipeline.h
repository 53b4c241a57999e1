// Prices the step of a whole pipeline: each stage's clock goes through its timeline and waits for
// what other stages send.
#pragma once

#include <vector>

#include "meshwright/instruction_time.h"
#include "meshwright/schedule.h"
#include "predict/price.h"

namespace mw {

struct PipelineTime {
  double step = 0;               // seconds, until the last stage is done
  std::vector<StepTime> stages;  // times of each stage's slowest rank
  // Each stage's runs of the segments that are shown (is_shown).
  std::vector<std::vector<TimedAction>> actions;
  // Times of each stage's instructions, where `traced` asked for them; else empty.
  std::vector<std::vector<InstructionTime>> instructions;
  // Share of the stages' time in which they are idle for want of another stage's work.
  double bubble = 0;
};

// Plays the stages together. `stages`: the rank of each stage that decides its time. Where ranks
// share cores, a stage runs the slower the more other stages compute at that moment. `traced`: each
// instruction is played by itself, so that the cost grows with microbatches.
PipelineTime price_pipeline(const std::vector<RankView>& stages, const Machine& machine,
                            int threads = 0, bool traced = false);

// "F", "B", "I", "W", "receive F", "receive B", "reduce", "totals", "update": what /actions and the
// drawings call a segment; of a braid, each lane has the name of its segment.
std::string action_name(const Segment& segment, int lane = 0);
// Whether timelines show runs of the segment. Segments that only begin transfers, or wait for
// sends, are not shown.
bool is_shown(const Segment& segment);

}  // namespace mw
