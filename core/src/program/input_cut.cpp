// Finds which part of an input a rank has.
#include "program/input_cut.h"

#include "meshwright/program.h"

namespace mw {

std::int64_t InputCut::bytes_read() const {
  std::int64_t elements = rows.size;
  for (std::int64_t size : shape) elements *= size;
  return elements * (indices ? 8 : 4);
}

InputCut input_cut(const RankView& rank, int slot) {
  const Program& program = rank.program();
  const Slot& of = program.slots[slot];
  InputCut cut;
  cut.indices = of.dtype == Dtype::int64;
  cut.copies = !cut.indices && of.dtype != Dtype::fp32;
  for (std::size_t d = 0; d < of.dims.size(); ++d) {
    const std::int64_t size = program.size(of.dims[d], rank.batch());
    const Range local = local_range(of.dims[d], size, of.layout, program.mesh, rank.at());
    cut.local.push_back(local.size);
    if (d == 0) {
      cut.rows = local;
      continue;
    }
    cut.shape.push_back(size);
    cut.parts.push_back(program.permuted(of.dims[d], local));
    cut.copies = cut.copies || local.size < size || cut.parts.back().size() > 1;
  }
  return cut;
}

}  // namespace mw
