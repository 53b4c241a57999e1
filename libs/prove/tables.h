// The layouts of an op's operands, results and their gradients that follow from the op's cut: the
// rules of meshwright/op.h, applied to each atom of the mesh.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/program.h"

namespace mw::proving {

// Atoms of a mesh, a bit for each.
using Atoms = std::uint64_t;

// The layouts of an op's operands and results, given the `carried` atoms, over which the operands
// that the op is linear in are Partial.
struct OpTable {
  std::vector<Layout> need;      // by input: layout that the op needs
  std::vector<Layout> gradient;  // by input: layout of the gradient that backward makes
  std::vector<Layout> out;       // by output: layout of the result
  std::vector<Layout> arrives;   // by output: layout in which backward needs its gradient
  std::vector<Layout> saved;     // by saved tensor: its layout
};

// What is wrong with the cut of an op; an empty message: nothing.
struct CutFault {
  bool stages = false;  // the op is cut over the atom of pipeline stages
  std::string message;
};

class OpTables {
 public:
  explicit OpTables(const Program& program);

  const OpTable& of(int op, Atoms carried);
  // Called once for each op, before its first table.
  CutFault fault(int op) const;
  // Atoms that layouts can use: those of more than one rank, but for the atom of pipeline stages.
  Atoms living() const { return living_; }
  bool lives(int atom) const { return (living_ >> atom & 1) != 0; }

 private:
  OpTable make(int op, Atoms carried) const;
  Placement need(int op, std::size_t input, int atom, bool carried) const;
  Placement out(int op, std::size_t output, int atom, bool carried) const;
  // The placement on an atom of a tensor with the dims `own`, which the op calls `called`: a shard
  // of the op's cut dim or its follower, or replicate.
  Placement cut_as(int op, int atom, const Dims& called, const Dims& own) const;

  const Program& program_;
  const Graph& graph_;
  Atoms living_ = 0;
  std::vector<std::unique_ptr<const OpTable>> plain_;  // by op: its table with no carried atoms
  std::map<std::pair<int, Atoms>, OpTable> others_;
};

}  // namespace mw::proving
