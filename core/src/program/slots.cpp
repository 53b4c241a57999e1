// Makes the instructions between two slots, each with its label.
#include "program/slots.h"

namespace mw {

Instruction alias(const Program& program, int from, int to, const char* phase) {
  Instruction i;
  i.code = Code::alias;
  i.inputs = {from};
  i.outputs = {to};
  i.phase = phase;
  i.label = program.slots[to].name;
  return i;
}

Instruction addition(const Program& program, int to, int share) {
  Instruction i;
  i.code = Code::add;
  i.phase = "backward";
  i.label = program.slots[to].name;
  i.inputs = {share};
  i.outputs = {to};
  return i;
}

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
