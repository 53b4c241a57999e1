// The pass behind ZeRO: what of a bucket each rank keeps only its shard of.
#pragma once

#include <string>
#include <vector>

#include "meshwright/passes.h"

namespace zero {

struct ShardedStorage {
  std::vector<std::string> axes;
  // ZeRO's stages: optimizer state (1), gradients too (2), parameters too (3).
  mw::ShardedState sharded_state = mw::ShardedState::optimizer;
  int prefetch = 1;  // layers whose parameters are gathered ahead of the one that computes
  // Gathered for each forward and backward; else once a step.
  bool reshard_after_forward = true;
  // Gradients in shards are reduced when the stage turns to another chunk of the model, not in
  // every microbatch.
  bool by_chunk = false;
  // Of every bucket, in shards or not (Ren et al. 2021, "ZeRO-Offload").
  mw::Offload offload = mw::Offload::nothing;
};

// Cuts the flat tensors of the buckets that are reduced over `axes`: gradients are
// reduce-scattered, and parameters all-gathered after the update, or, stored as shards themselves,
// before each use and let go after it. Gradients stored as shards are reduced in every microbatch,
// as each bucket's are there, or by chunk.
mw::Pass shard_storage(const ShardedStorage& storage);

}  // namespace zero
