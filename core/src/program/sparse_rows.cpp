// Tells by layer and layout which rows a slot has.
#include "program/sparse_rows.h"

namespace mw {

std::optional<SparseRows> sparse_rows(const Program& program, int slot) {
  const Graph& graph = *program.graph;
  const Slot& of = program.slots[slot];
  if (of.value < 0 || !graph.sparse.has(of.dims)) return std::nullopt;
  SparseRows rows{graph.ops()[graph.value(of.value).producer].layer, of.layout};
  for (Placement& p : rows.cells) {
    if (!p.is_shard() || !contains(graph.sparse.dims, p.dim)) p = Placement::replicate();
  }
  return rows;
}

}  // namespace mw
