// Footprints of what a step does with whole buckets: collectives, totals, the optimizer.
#include <algorithm>

#include "meshwright/optimizer.h"
#include "program/footprint_maker.h"
#include "program/update_steps.h"

namespace mw {

// A collective from one slot that lasts into another.
void FootprintMaker::start_lasting() {
  const int from = i_.inputs[0], to = i_.outputs[0];
  if (to != from) open(to);
  transfer(collective_of(i_.move.kind), {i_.move.atoms, i_.move.stages},
           std::max(rank_.bytes(from), rank_.bytes(to)));
}

void FootprintMaker::hooked(bool begins) {
  const ReductionCost cost = rank_.reduction(i_.bucket);
  const ReductionCost::Phase& phase = begins ? cost.start : cost.finish;
  if (begins) step(true, cost.held);
  pass(phase.workspace, Category::buffers);
  if (!begins) step(false, cost.held);
  works({.gemms = phase.flops > 0 ? 1 : 0,
         .calls = phase.flops > 0 ? 0 : 1,
         .flops = phase.flops,
         .bytes = static_cast<double>(phase.touched)});
  for (const ReductionCost::Call& call : phase.calls)
    transfer(call.op, program_.reduction(bucket()), call.bytes);
}

// The gradients are read for their norm, in pieces where they are widened for it: by every rank
// here, though some leave it to others that hold the same.
void FootprintMaker::totals() {
  pass(64);  // a handful of scalars
  double bytes = 0;
  const int gradients = static_cast<int>(i_.inputs.size()) - 1;
  for (int k = 1; k <= gradients; ++k) {
    const int slot = i_.inputs[k];
    const int item = bytes_of(program_.slots[slot].dtype);
    if (item < 4) pass(4 * std::min(rank_.bytes(slot) / item, cast_at_a_time));
    bytes += touched(slot);
  }
  works({.calls = gradients, .bytes = bytes});
  if (program_.mesh.size() > 1) {
    transfer(Collective::all_reduce, {world_atoms(program_.mesh), {}},
             3 * static_cast<std::int64_t>(sizeof(double)));
  }
}

// --- The optimizer ---

void FootprintMaker::update() {
  switch (i_.update) {
    case Update::none:
      break;
    case Update::direction:
      direction();
      break;
    case Update::whole:
      whole();
      break;
    case Update::apply:
      apply();
      break;
  }
}

// Gradients and states are read, states and directions written.
void FootprintMaker::direction() {
  const int to = i_.outputs[0];
  const UpdateSteps steps = update_steps(rank_, i_);
  if (program_.slots[to].persistent) {
    open(to);
  } else {
    steps.casts ? fresh(to) : share(to, slot_holder(i_.inputs[0]), 0);
  }
  const auto elements = static_cast<double>(steps.elements);
  copies(elements * bytes_of(program_.gradient_dtype) +
         static_cast<double>(2 * bucket().flat.states.size() + 1) * elements *
             bytes_of(program_.optimizer_dtype));
}

void FootprintMaker::whole() {
  const MatrixUpdate update = matrix_update(rank_, i_);
  if (update.begin >= update.end) return;
  const MatrixOp::Cost cost = bucket().rule->whole->cost(
      update.stacked, update.rows, update.columns, bytes_of(program_.optimizer_dtype));
  const int from = i_.inputs[0], to = i_.outputs[0];
  if (cost.in_place) {
    share(to, slot_holder(from), 0);
  } else {
    fresh(to);
  }
  pass(cost.workspace);
  works({.gemms = cost.gemms, .flops = cost.flops});
}

// Parameters and states are read and written, gradients read.
void FootprintMaker::apply() {
  const UpdateSteps steps = update_steps(rank_, i_);
  const std::int64_t states =
      i_.parameter >= 0 ? 0 : static_cast<std::int64_t>(bucket().flat.states.size());
  const int gradient = bytes_of(program_.slots[i_.inputs[0]].dtype);
  if (i_.parameter >= 0 && steps.elements > 0) pass(matrix_update(rank_, i_).apart);
  if (steps.casts && !steps.host) pass(bytes_of(program_.optimizer_dtype) * steps.at_a_time);
  const double moved =
      static_cast<double>(steps.elements) *
      static_cast<double>(2 * (states + 1) * bytes_of(program_.optimizer_dtype) + gradient);
  if (!steps.host) {
    copies(moved);
    return;
  }
  const int both_ways = steps.fetches_parameters ? 2 * bytes_of(program_.dtype) : 0;
  works({.calls = 1,
         .host = moved,
         .link = static_cast<double>(steps.elements * (gradient + both_ways))});
}

}  // namespace mw
