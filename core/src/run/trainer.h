// Training: the ranks, the steps, and what is known after each.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check/run_check.h"
#include "checkpoint/run_checkpoints.h"
#include "meshwright/ledger.h"
#include "run/executor.h"
#include "script/experiment.h"

namespace mw {

// The books of one rank after a step.
struct RankReport {
  int rank = 0;
  std::array<MemoryUse, category_count> memory{};
  std::int64_t peak_bytes = 0;
  std::map<CommunicationKey, CommunicationUse> communication;  // of this step
  // Rows that experts worked on, by layer and expert; and, of each stage's first rank,
  // choices of all ranks.
  std::map<std::pair<int, std::int64_t>, std::int64_t> rows, chosen;
  // Rows that its experts worked on over those that the program supposes; 0: it has none.
  double rows_share = 0;
  std::map<WorkKey, WorkUse> work;  // ... and this
  double began = 0;                 // the rank's step: seconds of a clock that all ranks share
  std::vector<RunTime> runs;
  std::vector<InstructionTime> instructions;  // StepOutcome
  std::vector<MemoryMoment> moments;
};

// An evaluation after a step: forward alone, on held-out data.
struct HeldOut {
  double loss = 0;     // mean of its batches
  double seconds = 0;  // wall time, no part of the step's
};

struct StepReport {
  std::int64_t step = 0;
  double seconds = 0;      // wall time of the step on the first rank
  double cpu_seconds = 0;  // of all processes
  double loss = 0, grad_norm = 0, lr = 0;
  double loss_scale = 1;  // and whether the update was left out, as gradients overflowed
  bool left_out = false;
  std::vector<RankReport> ranks;
  std::optional<HeldOut> held_out = {};
  bool checkpoint = false;  // one of what follows this step is begun once it is reported
};

struct TrainOutcome {
  bool interrupted = false;
  std::int64_t steps = 0;  // finished
  CheckReport check;       // of the rank whose check took longest; of no steps without one
};

// Called on the first rank's thread after each step; the other ranks may be at the next
// one already.
using OnStep = std::function<void(const StepReport&)>;

// Runs the experiment's steps, in all of its processes alike; `on_step` is called, and `end` read,
// in the first of them. Throws Error (plan) before any rank starts if there are too many, Error
// (run) naming the rank if one fails (run/ranks.h); what was reported until then stands. `stop`:
// set, in any process, to end after the current step. `end`: may be null; else the ranks wait for
// `on_step` after each step, and begin no other if it has set this.
// `checkpoints`: null, or those of this experiment: the first step is theirs to say; the last one
// may be under way at the end (Checkpoints::finish).
TrainOutcome train(const Experiment& experiment, const std::atomic<bool>* stop,
                   const OnStep& on_step, const std::atomic<bool>* end = nullptr,
                   Checkpoints* checkpoints = nullptr);

}  // namespace mw
