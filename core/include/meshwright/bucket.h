// A bucket: parameters whose gradients are reduced together and updated together, and the flat
// slots in which they lie.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mw {

// What of a bucket each rank keeps only its shard of; each has also what stands before it.
enum class ShardedState : std::uint8_t { nothing, optimizer, gradients, parameters };

// What of a bucket lies in host memory and is updated there: the optimizer's state; the rank's
// shard of parameters that are kept as shards too.
enum class Offload : std::uint8_t { nothing, optimizer, parameters };

// A bucket's flat slots, of which its parameters' and their gradients' slots are views.
struct FlatSlots {
  int parameters = -1;  // whole, as compute reads them
  int stored = -1;      // what the rank keeps of them: these, or its shard
  int gradients = -1;   // whole, as backward adds to them
  int reduced = -1;     // what the rank keeps of their sum
  // What the rank keeps of the parameters, on the device, while that is gathered from host memory.
  // -1: it lies on the device.
  int on_device = -1;
  // Where they are summed in another dtype, the gradients in that; where the shard of a sum is not
  // `reduced` itself, what arrives, and that in the gradients' dtype. -1: there is none.
  int cast = -1, arriving = -1, cast_back = -1;
  // The optimizer's: its own copy of what it updates, -1 where that is `stored`; what it keeps
  // beside it; of matrices in shards, the shard of directions and all of them.
  int master = -1;
  std::vector<int> states, of_matrix;  // as UpdateRule has them
  // The tensor that the optimizer updates.
  int updated() const { return master >= 0 ? master : stored; }
  // Where a bucket is updated on the device (Bucket::update_on_device), the copies there of what
  // lies in host memory: of `states`, and of updated(), -1 where that lies on the device.
  std::vector<int> states_on_device;
  int updated_on_device = -1;
  // Where a bucket is updated in host memory, element by element (Bucket::updated_on_host()): its
  // reduced gradients there; and, where that is not the dtype of updated(), the updated parameters
  // there in the dtype that computes: `stored` itself, or what is copied to it on the device.
  int gradients_on_host = -1, parameters_on_host = -1;
  int direction = -1, directions = -1;
  // Their moves under way: the reduction, what of it remains for the shards,
  // the gather of parameters.
  int reduction = -1, shard_reduction = -1, gather = -1, gather_directions = -1;
};

// Parameters whose gradients are reduced together and updated together. Parameters, gradients and
// optimizer state of a bucket each lie in one flat tensor, in this order.
struct Bucket {
  std::vector<int> parameters;       // indices into Program::parameters
  std::vector<int> reduce_atoms;     // atoms to all-reduce over; empty: nothing to reduce
  std::vector<int> parameter_atoms;  // atoms over which the parameters are sharded
  std::vector<int> stages;  // that hold these parameters, if more than one (tied embeddings)
  std::string name;
  bool counts = false;   // of parameters that count (Value::counts), which no optimizer sees
  bool matrix = false;   // of matrices of layers, for which the optimizer has a rule of their own
  bool overlap = false;  // its reduction starts as soon as its last gradient is there
  bool reduce_per_microbatch = false;  // reduced after every run that adds to it
  // Where the optimizer's state is in shards and parameters are whole: the updated parameters are
  // gathered beside the next step's forward, which awaits them before their first use; else, and
  // where no forward uses them, at the step's end. Whoever reads parameters between two steps
  // (RankRun) awaits them too.
  bool gather_overlaps_forward = false;
  // Carries out the reduction (reduction_hook.h); null: one all-reduce.
  std::shared_ptr<const class ReductionHook> hook;
  // How it is stored. Atoms of `reduce_atoms` over which flat tensors are cut, equally, with zeros
  // after the last parameter, and of what a rank keeps its shard alone. Parameters that are kept
  // whole are gathered after the update by the planner. Whoever has them kept as shards gathers
  // them before each use (begin_gather), and reduces gradients that are kept as shards
  // (begin_reduction).
  std::vector<int> shard_atoms;
  // Whether all ranks keep the parameters whole, and each updates its shard of them.
  bool gathered_once_updated() const {
    return sharded_state == ShardedState::optimizer || sharded_state == ShardedState::gradients;
  }
  ShardedState sharded_state = ShardedState::nothing;  // `nothing` where there are no such atoms
  Offload offload = Offload::nothing;                  // parameters: only of those kept as shards
  bool update_on_device = false;  // what is offloaded comes to the device for the update
  // Whether it is updated in host memory, one element at a time.
  bool updated_on_host() const { return flat.gradients_on_host >= 0; }
  // Whether such an update is to be made beside what the device computes: beside the backward,
  // where it waits for no totals (Program::update_needs_totals), else beside the next step's
  // forward. Else it is made at the step's end.
  bool update_overlaps = false;
  // Set by the planner: the update of a step, and the way of the parameters to the device, stand in
  // the next step's forward, before what reads the parameters first (completes_update,
  // engine/program_facts.h). Where no forward has a place for them, they stand at the step's end.
  bool update_overlaps_forward = false;
  std::shared_ptr<const struct UpdateRule> rule;  // how the optimizer updates it; null: it does not
  FlatSlots flat;                                 // once the passes have decided about buckets
};

}  // namespace mw
