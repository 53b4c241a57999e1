// A bucket: parameters whose gradients are reduced together and updated together, and the flat
// slots in which they lie.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mw {

// The tensors of a bucket that are sharded over the ranks. Each value includes the values before
// it: `gradients` also shards the optimizer state.
enum class ShardedState : std::uint8_t { nothing, optimizer, gradients, parameters };

// The tensors of a bucket that lie in host memory. `optimizer`: the optimizer state. `parameters`:
// also the rank's shard of the parameters, which must be sharded.
enum class Offload : std::uint8_t { nothing, optimizer, parameters };

// The flat slots of a bucket, as indices into Program::slots; -1: there is none. The slots of its
// parameters and of their gradients are views of `parameters` and `gradients`.
struct FlatSlots {
  int parameters = -1;  // the whole parameters, as ops read them
  int stored = -1;      // the parameters that the rank keeps: `parameters`, or its shard of them
  int gradients = -1;   // the whole gradients, as backward adds to them; -1: frozen
  int reduced = -1;     // the reduced gradients that the rank keeps: all, or its shard of them
  // Copy on the device of the rank's parameter shard, while parameters are gathered from host
  // memory; -1: the shard lies on the device.
  int on_device = -1;
  // Buffers of a reduction. `cast`: the gradients in the dtype in which they are summed, if that is
  // another one. `arriving`: the rank's shard of the sum, if it is not received in `reduced`.
  // `cast_back`: `arriving` in the gradients' dtype.
  int cast = -1, arriving = -1, cast_back = -1;
  int master = -1;  // the optimizer's copy of the parameters; -1: it updates `stored`
  std::vector<int> states, of_matrix;  // the optimizer state, in the order of UpdateRule's lists
  // Slots of outer steps (OuterSteps): the anchor, the outer optimizer's states, and the outer
  // gradient, which lasts from step to step where the outer step ends in a later one than it began.
  int anchor = -1, outer_gradient = -1;
  std::vector<int> outer_states;
  int average = -1;  // the state that is an average of the parameters (UpdateRule::average)
  // The slots beside the parameters that begin as these do; -1: there is none.
  std::array<int, 3> begin_as_parameters() const { return {master, average, anchor}; }
  // The tensor that the optimizer updates.
  int updated() const { return master >= 0 ? master : stored; }
  // The copies on the device of `states` and updated(), if these lie in host memory but are updated
  // on the device (Bucket::update_on_device).
  std::vector<int> states_on_device;
  int updated_on_device = -1;
  // Slots of an update in host memory (Bucket::updated_on_host): the reduced gradients there, and
  // the updated parameters in the ops' dtype, if updated() has another dtype. The latter are
  // `stored` itself, or are copied to `stored` on the device.
  int gradients_on_host = -1, parameters_on_host = -1;
  // Update directions of sharded matrices: the rank's shard, and all of them once gathered.
  int direction = -1, directions = -1;
  // Pending numbers (Instruction::pending) of the bucket's collectives: the reduction, the sum of
  // reduced shards over further ranks, the gathers of parameters and of directions, the sum of
  // outer gradients.
  int reduction = -1, shard_reduction = -1, gather = -1, gather_directions = -1, outer_sum = -1;
};

// Parameters whose gradients are reduced together and updated together. Parameters, gradients and
// optimizer state of a bucket each lie in one flat tensor, in this order.
struct Bucket {
  std::vector<int> parameters;       // indices into Program::parameters
  std::vector<int> reduce_atoms;     // atoms to all-reduce over; empty: nothing to reduce
  std::vector<int> parameter_atoms;  // atoms over which the parameters are sharded
  std::vector<int> stages;  // stages that hold these parameters, if several (tied embeddings)
  std::string name;
  bool counts = false;   // holds counters (Value::counts), which no optimizer trains
  bool frozen = false;   // holds frozen parameters: all slots of gradients and states are -1
  bool matrix = false;   // holds matrices whose rule is for such (UpdateRule::of_matrices)
  int group = 0;         // the optimizer's group that updates it (Optimizer::groups_of)
  int fragment = -1;     // the group of buckets with which outer steps bring it together; -1: none
  bool overlap = false;  // the reduction starts as soon as the last gradient is ready
  bool reduce_per_microbatch = false;  // reduced after every segment run that adds gradients
  // Gathers updated parameters during the next step's forward, which waits for them before their
  // first use; for sharded optimizer state with whole parameters. If false, or if no forward uses
  // the parameters, they are gathered at the end of the step. Code that reads parameters between
  // two steps (RankRun) must wait for the gather too.
  bool gather_overlaps_forward = false;
  // The hooks that sum the gradients over the ranks and gather sharded parameters
  // (reduction_hook.h); null: one collective.
  std::shared_ptr<const class ReductionHook> hook, gather_hook;
  // The part of `reduce_atoms` over which the flat tensors are sharded, in equal parts, with zeros
  // after the last parameter. The planner gathers whole parameters after the update. A pass that
  // shards parameters must gather them before each use (begin_gather), and a pass that shards
  // gradients must reduce them (begin_reduction).
  std::vector<int> shard_atoms;
  // Whether all ranks keep whole parameters, but each updates only its shard of them.
  bool gathered_once_updated() const {
    return sharded_state == ShardedState::optimizer || sharded_state == ShardedState::gradients;
  }
  ShardedState sharded_state = ShardedState::nothing;  // `nothing` if `shard_atoms` is empty
  Offload offload = Offload::nothing;
  bool update_on_device = false;  // offloaded tensors are copied to the device for the update
  // Whether the host updates the bucket, by an ElementOp, in host memory.
  bool updated_on_host() const { return flat.gradients_on_host >= 0; }
  // Whether an update in host memory overlaps with the device's work: with the backward, if the
  // update needs no totals (Program::update_needs_totals), else with the next step's forward. If
  // false, the update runs at the end of the step.
  bool update_overlaps = false;
  // Set by the planner: the update, and the copies of parameters to the device, stand in the next
  // step's forward, before the first reader of the parameters (completes_update,
  // engine/program_facts.h). If no forward has a place for them, they stand at the step's end.
  bool update_overlaps_forward = false;
  std::shared_ptr<const struct UpdateRule> rule;  // null: no optimizer updates the bucket
  FlatSlots flat;                                 // set once all passes have edited the buckets
};

}  // namespace mw
