// Small helpers on a program's slots: instructions between two of them, and which of them have the
// rows of one layer's sparse tensors.
#pragma once

#include <optional>

#include "meshwright/program.h"

namespace mw {

// `to` is what `from` is, without a copy.
Instruction alias(const Program& program, int from, int to, const char* phase);
// `share` is added to the gradient in `to`.
Instruction addition(const Program& program, int to, int share);

// The rows that a layer's op has found, as they lie: only what cuts cells parts rows.
struct SparseRows {
  int layer = -1;  // Op::layer
  Layout cells;    // Replicate on the atoms that cut another dim, or none
  friend bool operator==(const SparseRows& a, const SparseRows& b) {
    return a.layer == b.layer && a.cells == b.cells;
  }
};

// Nothing of a slot that is not sparse.
std::optional<SparseRows> sparse_rows(const Program& program, int slot);

}  // namespace mw
