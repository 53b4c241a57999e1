// Passes: edits of a program between its derivation and its completion;
// those of the core, for strategies to add.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"

namespace mw {

// A pass edits the program between its derivation and its completion, after recompute and offload.
// Whichever strategy brings a pass, those that decide about buckets run before those that place
// what buckets need.
struct Pass {
  enum Order : std::uint8_t { buckets, reductions, storage, instructions };
  std::string name;
  std::function<void(Program&)> run;
  Order order = instructions;
  // The axis that it works on, if it is for one; the plan is refused where the mesh lacks it. One
  // for reductions or storage is refused where no gradient is a sum over that axis.
  std::string axis = {};
  std::string strategy = {}, place = {};  // of who brings it, for messages; set by Draft::add_pass
};

// Splits the buckets so that none exceeds `bytes` of gradients (a larger parameter stands alone),
// in the order in which gradients become ready in backward.
Pass bucket_gradients(std::int64_t bytes);
// Starts each bucket's reduction inside the last run of a segment that adds to its gradients, as
// soon as the last one is there.
Pass overlap_gradient_reduction();
// Reduces the buckets that are reduced over `axis` in every microbatch. Those that several stages
// share are still reduced after the last, as the stages add to them at different times.
Pass reduce_each_microbatch(const std::string& axis);
struct ShardedStorage {
  std::string axis;
  ShardedState sharded_state = ShardedState::optimizer;
  int prefetch = 1;  // layers whose parameters are gathered ahead of the one that computes
  // Gathered for each forward and backward; else once a step.
  bool reshard_after_forward = true;
  Offload offload = Offload::nothing;  // of every bucket, in parts or not
};
// Parts the flat tensors of the buckets that are reduced over `axis`: gradients are
// reduce-scattered, and parameters all-gathered after the update, or, stored in parts themselves,
// before each use and let go after it. Gradients stored in parts are reduced in every microbatch,
// as each bucket's are there.
Pass shard_storage(const ShardedStorage& storage);
// Lets what depends on neither go on while rows of sparse tensors are on their way: exchanges begin
// as soon as what they send is there, and are awaited where what they bring is read.
Pass overlap_exchanges();
// Lets weight gradients run while an input gradient is on its way: each collective of backward
// starts right after the last dgrad that feeds it, and the wgrads that stood before it come between
// start and wait.
Pass overlap_wgrad();
// Gives a hook, or null for a plain all-reduce, to each bucket that is reduced over `axis`. Called
// when the plan is made, for each such bucket of each stage, with the shape on the stage's first
// rank. Where several stages share a bucket, they must get the same: let the choice follow from the
// bucket alone. Gradients that are kept in parts cannot have one (the plan is refused).
Pass hook_reductions(
    const std::string& axis,
    std::function<std::shared_ptr<const ReductionHook>(const BucketShape&)> choose);

}  // namespace mw
