// Where a run begins: anew, or from a checkpoint; and that it overwrites nobody's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/run_checkpoints.h"
#include "record/log_claim.h"
#include "script/experiment.h"

namespace mw {

struct CheckpointStart {
  std::unique_ptr<Checkpoints> checkpoints;  // null: the experiment asks for none
  std::vector<std::string> notes;            // what people should know
  // The one that the run goes on from; null: it begins anew.
  const Checkpoint* from() const { return checkpoints ? checkpoints->from() : nullptr; }
};

// Holds the experiment's folder of checkpoints, and chooses the newest that is whole if it is to
// go on, which the experiment is told. It outlives what is returned. Throws Error (options): a
// folder that cannot be written to, or is another run's; checkpoints of another experiment; none
// that is whole.
CheckpointStart begin_checkpoints(Experiment& experiment);

// Holds the experiment's log, if it has one. `from`: the checkpoint that the run goes on from,
// whose log it takes over; null: it begins anew.
LogClaim claim_log(const Experiment& experiment, const Checkpoint* from);

}  // namespace mw
