// An experiment: all that a run, a prediction or a check is given, resolved and checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/run_request.h"
#include "meshwright/engine/run.h"
#include "meshwright/json.h"

namespace mw {

// When the held-out loss is taken: forward alone, on other data, by the run's own plan
// (RunSetup::held_out_data).
struct Evaluation {
  std::int64_t every = 0;    // steps from one evaluation to the next; one more at the end; 0: never
  std::int64_t batches = 1;  // batches of an evaluation, each of a step's size
};

// The checkpoints that a run writes, and the one that it goes on from.
struct Checkpointing {
  std::string path;        // a folder of checkpoints; empty: none
  std::int64_t every = 0;  // steps from one checkpoint to the next; 0: at the end alone
  std::int64_t keep = 0;   // how many of the newest checkpoints stay; 0: all
  bool resume = false;     // go on from the newest whole checkpoint
  std::string from;        // checkpoint to go on from, or a folder of them; empty: `path`
  bool changed = false;    // go on although the experiment has changed
};

class HfExport;

// What a run writes, and where.
struct RunOutputs {
  std::string log;          // run file; empty: none
  std::string folder;       // run folder, where `log` names one: the run file lies in it
  std::string tensorboard;  // folder of event files; empty: none
  bool overwrite = false;   // another run's log and events may be replaced
  Checkpointing checkpoint;
  std::shared_ptr<HfExport> exporter;  // of the weights after the last step; null: none
};

// The checks, evaluations and observers of a run.
struct RunChecks {
  Evaluation evaluation;
  bool check = false;  // assert what plans say of tensors (observers/run_check.h)
  // Steps from one comparison of replicas to the next (observers/replicas.h); 0: there is none.
  std::int64_t check_every = 0;
  // A step whose loss or gradient norm is NaN or Inf ends the run, before its update.
  bool stops_on_nan = true;
  // The script's function `observe`, then the entries of its list `observers`
  // (script/read_observers.h).
  std::vector<std::shared_ptr<RunObserver>> observers;
};

// The request, what the ranks are given (the plan with it), the outputs and the checks. A function
// takes the parts that it needs.
struct Experiment : RunRequest, RunSetup, RunOutputs, RunChecks {};

}  // namespace mw
