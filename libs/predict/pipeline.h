// The step of all stages together: each stage's clock through its timeline, with what one sends and
// another waits for.
#pragma once

#include <vector>

#include "meshwright/instruction_time.h"
#include "meshwright/schedule.h"
#include "predict/price.h"

namespace mw {

struct PipelineTime {
  double step = 0;                                // seconds, until the last stage is done
  std::vector<StepTime> stages;                   // of each stage's slowest rank
  std::vector<std::vector<TimedAction>> actions;  // of each stage, without posts and sents
  // What each stage did, where it was asked for; else empty.
  std::vector<std::vector<InstructionTime>> instructions;
  double bubble = 0;  // of the stages' time: idle for want of another stage's work
};

// `stages`: of each stage, the rank that decides. Where ranks share cores, a stage runs the slower
// the more others compute at that moment. `traced`: each instruction
// is played by itself, so that its time grows with microbatches.
PipelineTime price_pipeline(const std::vector<RankView>& stages, const Machine& machine,
                            int threads = 0, bool traced = false);

// "F", "B", "I", "W", "receive F", "receive B", "reduce", "totals", "update": what /actions and the
// drawings call a segment; of a braid, each lane has the name of its segment.
std::string action_name(const Segment& segment, int lane = 0);
// Whether timelines show its runs: not of what only begins something or waits for what is over.
bool is_shown(const Segment& segment);

}  // namespace mw
