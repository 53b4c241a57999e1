// Says where an elementwise op of the optimizer runs on a rank, and what it casts and copies.
#include "program/update_steps.h"

#include <algorithm>

#include "program/matrices.h"

namespace mw {

UpdateSteps update_steps(const RankView& rank, const Instruction& update) {
  const Program& program = rank.program();
  const Bucket& bucket = program.buckets[update.bucket];
  const Slot &from = program.slots[update.inputs[0]], &to = program.slots[update.outputs[0]];
  UpdateSteps steps;
  steps.host = bucket.offload != Offload::nothing;
  if (update.update == Update::direction) {
    steps.elements = rank.bytes(update.outputs[0]) / bytes_of(to.dtype);
    steps.casts = from.dtype != program.optimizer_dtype;
    steps.at_a_time = steps.elements;  // directions are kept whole, for their matrices
    return steps;
  }
  steps.elements = rank.shard(update.bucket).size;
  if (update.parameter >= 0) {
    const MatrixUpdate matrices = matrix_update(rank, update);
    steps.elements = std::max<std::int64_t>(0, matrices.end - matrices.begin);
  }
  // What experts' loads move is a sum of few elements; directions have the optimizer's dtype.
  steps.casts = bucket.rule && update.parameter < 0 && from.dtype != to.dtype;
  steps.at_a_time = steps.casts ? std::min(steps.elements, cast_at_a_time) : steps.elements;
  steps.fetches_parameters = steps.host && to.memory != Memory::host;
  return steps;
}

}  // namespace mw
