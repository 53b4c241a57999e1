// Footprints of what a step does with whole buckets: collectives, totals, the optimizer.
#include <algorithm>

#include "program/footprint_maker.h"
#include "program/matrices.h"

namespace mw {

// A collective from one flat slot into another.
void FootprintMaker::start_flat() {
  const int from = i_.inputs[0], to = i_.outputs[0];
  const bool reduces = i_.pending == bucket().flat.reduction;
  if (bucket().hook && reduces) {
    hooked(true);
    return;
  }
  if (from == bucket().flat.gradients) open(from);  // where nobody wrote it, it holds zeros
  if (to != from) open(to);
  if (program_.slots[from].memory == Memory::host)  // goes to the device first
    works({.link = static_cast<double>(rank_.bytes(from))});
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

// The gradients are read for their norm, in pieces where they are widened for it.
void FootprintMaker::totals() {
  pass(64);  // a handful of scalars
  double bytes = 0;
  for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
    if (bytes_of(program_.gradient_dtype) < 4)
      pass(4 * std::min(rank_.shard_elements(static_cast<int>(b)), cast_at_a_time));
    bytes += touched(program_.buckets[b].flat.reduced);
  }
  works({.calls = static_cast<int>(program_.buckets.size()), .bytes = bytes});
  if (program_.mesh.size() > 1) {
    transfer(Collective::all_reduce, {world_atoms(program_.mesh), {}},
             3 * static_cast<std::int64_t>(sizeof(double)));
  }
}

// --- The optimizer ---

// Gradients and momentum are read, momentum and directions written.
void FootprintMaker::direct() {
  const DirectSize size = direct_size(rank_, i_);
  make(scratch_holder(0), size.widened);
  make(slot_holder(i_.outputs[0]), size.made);
  for (std::size_t k = 1; k < i_.outputs.size(); ++k)
    share(i_.outputs[k], slot_holder(i_.outputs[0]), 0);
  release(scratch_holder(0));
  copies(static_cast<double>(size.elements) *
         (bytes_of(program_.gradient_dtype) + 3 * bytes_of(program_.optimizer_dtype)));
  if (size.payload > 0) transfer(Collective::all_gather, {bucket().parts, {}}, size.payload);
}

void FootprintMaker::update_matrix() {
  const MatrixUpdate update = matrix_update(rank_, i_);
  pass(update.workspace);
  works({.gemms = 3 * program_.ns_steps, .flops = update.flops});
  works({.bytes = static_cast<double>(update.end - update.begin) *
                  (bytes_of(program_.dtype) + 3 * bytes_of(program_.optimizer_dtype))});
}

// Parameters and states are read and written, gradients read.
void FootprintMaker::update() {
  const Offload offload = bucket().offload;
  const FlatSlots& flat = bucket().flat;
  const std::int64_t elements = rank_.shard_elements(i_.bucket);
  const std::int64_t optimizer = bytes_of(program_.optimizer_dtype);
  const std::int64_t state = bucket().tally    ? (program_.has_masters() ? optimizer : 0)
                             : bucket().matrix ? state_.matrices
                                               : state_.others;
  const double moved =
      static_cast<double>(elements) * static_cast<double>(2 * state + 2 * bytes_of(program_.dtype) +
                                                          bytes_of(program_.gradient_dtype));
  if (offload == Offload::nothing) {
    if (program_.has_masters() && program_.gradient_dtype != program_.optimizer_dtype)
      pass(optimizer * std::min(elements, cast_at_a_time));
    copies(moved);
    return;
  }
  // The gradient goes to the host, and the parameters that do not lie there come back; without masters they
  // went there first.
  const int ways = offload == Offload::parameters ? 0 : program_.has_masters() ? 1 : 2;
  works({.calls = 1,
         .host = moved,
         .link = static_cast<double>(rank_.bytes(flat.reduced) + ways * rank_.bytes(flat.stored))});
}

}  // namespace mw
