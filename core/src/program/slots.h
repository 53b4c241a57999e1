// Small helpers on a program's slots: instructions between two of them, and which of them have the
// rows of one layer's sparse tensors.
#pragma once

#include <optional>

#include "meshwright/program.h"

namespace mw {

// The instruction that makes `to` the same tensor as `from`, without a copy.
Instruction alias(const Program& program, int from, int to, const char* phase);
// The instruction that adds `share` to the gradient in `to`.
Instruction addition(const Program& program, int to, int share);

// The rows of a layer's sparse tensors in one layout. Only cuts of the sparse dims part rows.
struct SparseRows {
  int layer = -1;  // Op::layer of the op that makes the rows
  Layout cells;    // the layout; Replicate on the atoms that cut no sparse dim
  friend bool operator==(const SparseRows& a, const SparseRows& b) {
    return a.layer == b.layer && a.cells == b.cells;
  }
};

// The rows that a slot has; nothing if it is not sparse.
std::optional<SparseRows> sparse_rows(const Program& program, int slot);

}  // namespace mw
