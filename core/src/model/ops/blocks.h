// Which queries of a rank see which of the keys that are there, in blocks that a fused kernel takes.
#pragma once

#include <vector>

#include "meshwright/op.h"

namespace mw::kernel {

// Tokens `queries` of the rank's own and `keys` of those that are there, as they lie. Causal: the same tokens
// of the sequence, each seeing what is not after it; else each query sees each key.
struct Block {
  Range queries, keys;
  bool causal = false;
};

// Causal attention. Every query and key that may meet is in one block; causal blocks come first, and cover all
// queries if their own tokens are among the keys.
std::vector<Block> causal_blocks(const LocalDim& queries, const LocalDim& keys);

}  // namespace mw::kernel
