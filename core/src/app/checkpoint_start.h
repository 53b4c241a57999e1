// Where a run begins: anew, or from a checkpoint; and that it overwrites nobody's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "record/log_claim.h"
#include "run/checkpoints.h"

namespace mw {

struct CheckpointStart {
  Checkpoints::Setup setup;
  std::vector<std::string> notes;  // what people should know
  bool used = false;               // whether the experiment asks for checkpoints at all
};

// Holds the experiment's folder of checkpoints, and chooses the newest that is whole if it is to
// go on. Throws Error (options): a folder that cannot be written to, or is another run's;
// checkpoints of another experiment; none that is whole.
CheckpointStart start_checkpoints(const Experiment& experiment);

// Holds the experiment's log, if it has one. `from`: the checkpoint that the run goes on from, whose
// log it takes over; null: it begins anew.
LogClaim claim_log(const Experiment& experiment, const Checkpoint* from);

// Tells the experiment that its ranks begin with that checkpoint.
void go_on_from(const Checkpoint& checkpoint, Experiment& experiment);

}  // namespace mw
