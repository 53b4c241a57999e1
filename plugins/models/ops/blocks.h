// Cuts the pairs of a rank's queries and the keys that they see into blocks for a fused kernel.
#pragma once

#include <vector>

#include "attend.h"
#include "meshwright/op.h"

namespace mw::kernel {

// A range of the rank's queries and a range of the keys that are present, by place in memory.
struct Block {
  Range queries, keys;
  Sight sight;
};

// The blocks of causal attention. Every query and key that may meet are in one block. Blocks of the
// same tokens come first, and cover all queries if the queries' own tokens are among the keys. A
// query sees itself and the `window` - 1 tokens before it; 0: all before it. `documents`: the
// places in the sequence at which the queries' documents begin, ascending; a query sees no key
// before its own document. Empty: the sequence is one document.
std::vector<Block> causal_blocks(const LocalDim& queries, const LocalDim& keys,
                                 std::int64_t window = 0,
                                 const std::vector<std::int64_t>& documents = {});

}  // namespace mw::kernel
