// Which queries of a rank see which of the keys that are there,
// in blocks that a fused kernel takes.
#pragma once

#include <vector>

#include "attend.h"
#include "meshwright/op.h"

namespace mw::kernel {

// Tokens `queries` of the rank's own and `keys` of those that are there, as they lie.
struct Block {
  Range queries, keys;
  Sight sight;
};

// Causal attention. Every query and key that may meet is in one block; those of the same tokens
// come first, and cover all queries if their own tokens are among the keys.
// A query sees itself and the `window` - 1 tokens before it; 0: all before it.
std::vector<Block> causal_blocks(const LocalDim& queries, const LocalDim& keys,
                                 std::int64_t window = 0);

}  // namespace mw::kernel
