// Footprints of what a step does with whole buckets: reductions, gathers, totals, the optimizer.
#include <algorithm>

#include "program/footprint_maker.h"
#include "program/matrices.h"

namespace mw {

void FootprintMaker::reduction() {
  const bool begins = i_.code == Code::reduce;
  const ReductionCost hook = rank_.reduction(i_.bucket);
  const ReductionCost::Phase& phase = begins ? hook.start : hook.finish;
  const FlatBytes flat = rank_.flat(i_.bucket);
  const Holder whole{Holder::Kind::gradients, i_.bucket};
  const bool sharded = bucket().parted >= Parted::gradients;
  const Flight flight{Flight::Of::reduction, i_.bucket};
  (begins ? made_.begins : made_.awaits) = flight;
  if (begins) step(true, hook.held);
  pass(phase.workspace, Category::buffers);
  if (!begins) step(false, hook.held);
  if (sharded) {  // begun where nothing was written, too
    begins ? ensure(whole, flat.gradients, Category::buffers) : release(whole);
  }
  step(begins, flat.reducing);
  if (bucket().hook) {
    made_.work.push_back({.gemms = phase.flops > 0 ? 1 : 0,
                          .calls = phase.flops > 0 ? 0 : 1,
                          .flops = phase.flops,
                          .bytes = static_cast<double>(phase.touched)});
    for (const ReductionCost::Call& call : phase.calls)
      transfer(call.op, program_.reduction(bucket()), call.bytes);
  } else if (begins) {
    bucket().parts.empty()
        ? transfer(Collective::all_reduce, program_.reduction(bucket()), flat.summed)
        : transfer(Collective::reduce_scatter, {bucket().parts, {}}, flat.summed);
  } else if (sharded) {  // what was reduced is added to the shard that is kept
    copies(3 * static_cast<double>(flat.part_of_gradients));
  }
}

// What remains to be summed of the shards.
void FootprintMaker::shard_reduction() {
  const bool begins = i_.code == Code::reduce_parts;
  const FlatBytes flat = rank_.flat(i_.bucket);
  (begins ? made_.begins : made_.awaits) = Flight{Flight::Of::shard_reduction, i_.bucket};
  step(begins, flat.reducing_parts);
  if (begins) transfer(Collective::all_reduce, program_.part_reduction(bucket()), flat.part_summed);
}

void FootprintMaker::gather() {
  const FlatBytes flat = rank_.flat(i_.bucket);
  if (bucket().parted >= Parted::parameters)
    ensure({Holder::Kind::parameters, i_.bucket}, flat.parameters, Category::buffers);
  if (bucket().offload == Offload::parameters)  // goes to the device first
    made_.work.push_back({.link = static_cast<double>(flat.part_of_parameters)});
  transfer(Collective::all_gather, {bucket().parts, {}}, flat.parameters);
  made_.begins = Flight{Flight::Of::gather, i_.bucket};
}

// The gradients are read for their norm, in pieces where they are widened for it.
void FootprintMaker::totals() {
  pass(64);  // a handful of scalars
  double bytes = 0;
  for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
    const FlatBytes flat = rank_.flat(static_cast<int>(b));
    if (bytes_of(program_.gradient_dtype) < 4)
      pass(4 * std::min(flat.part_elements, cast_at_a_time));
    bytes += static_cast<double>(flat.part_of_gradients);
  }
  made_.work.push_back({.calls = static_cast<int>(program_.buckets.size()), .bytes = bytes});
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
  made_.work.push_back({.gemms = 3 * program_.ns_steps, .flops = update.flops});
  made_.work.push_back(
      {.bytes = static_cast<double>(update.end - update.begin) *
                (bytes_of(program_.dtype) + 3 * bytes_of(program_.optimizer_dtype))});
}

// Parameters and states are read and written, gradients read.
void FootprintMaker::update() {
  const Offload offload = bucket().offload;
  const FlatBytes flat = rank_.flat(i_.bucket);
  const std::int64_t optimizer = bytes_of(program_.optimizer_dtype);
  const std::int64_t state = bucket().tally    ? (program_.has_masters() ? optimizer : 0)
                             : bucket().matrix ? state_.matrices
                                               : state_.others;
  const double moved = static_cast<double>(flat.part_elements) *
                       static_cast<double>(2 * state + 2 * bytes_of(program_.dtype) +
                                           bytes_of(program_.gradient_dtype));
  if (offload == Offload::nothing) {
    if (program_.has_masters() && program_.gradient_dtype != program_.optimizer_dtype)
      pass(optimizer * std::min(flat.part_elements, cast_at_a_time));
    copies(moved);
    return;
  }
  // The gradient goes to the host, and the parameters that do not lie there come back; without masters they
  // went there first.
  const int ways = offload == Offload::parameters ? 0 : program_.has_masters() ? 1 : 2;
  made_.work.push_back(
      {.calls = 1,
       .host = moved,
       .link = static_cast<double>(flat.part_of_gradients + ways * flat.part_of_parameters)});
}

}  // namespace mw
