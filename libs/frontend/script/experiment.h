// An experiment: everything that a run, a prediction or a check is given,
// resolved and known to be right.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/run_request.h"
#include "meshwright/engine/run.h"
#include "meshwright/json.h"

namespace mw {

// When a held-out loss is taken: forward alone, on samples of other data, by the run's own plan
// (RunSetup::held_out_data).
struct Evaluation {
  std::int64_t every = 0;    // steps; after the last step too; 0: never
  std::int64_t batches = 1;  // each of a step's size
};

// What a run writes of itself as it goes on, and whether it goes on from that.
struct Checkpointing {
  std::string path;        // a folder of checkpoints; empty: none
  std::int64_t every = 0;  // steps; 0: at the end alone
  std::int64_t keep = 0;   // of the newest; 0: all
  bool resume = false;     // go on from the newest that is whole
  std::string from;        // that folder, or a checkpoint; empty: `path`
  bool changed = false;    // although the experiment is no longer the same
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

// What looks on while a run goes.
struct RunChecks {
  Evaluation evaluation;
  bool check = false;  // what plans say of tensors is asserted (check/run_check.h)
  // Steps from one comparison of replicas to the next (check/replicas.h); 0: there is none.
  std::int64_t check_every = 0;
  // A step whose loss or gradient norm is NaN or Inf ends the run, before its update.
  bool stops_on_nan = true;
  // The script's function `observe`, then the entries of its list `observers`
  // (script/read_observers.h).
  std::vector<std::shared_ptr<RunObserver>> observers;
};

// What was asked, what the ranks are given (the plan with it), and what becomes of it. A function
// takes the parts that it needs.
struct Experiment : RunRequest, RunSetup, RunOutputs, RunChecks {};

}  // namespace mw
