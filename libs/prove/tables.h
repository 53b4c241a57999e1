// How the operands and results of an op must lie, and how their gradients do, by the cut of the op:
// the rules of meshwright/op.h, applied to each atom of the mesh.
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

// The places of an op's operands and results, where the operands that it is linear in are sums over
// the ranks of some atoms.
struct OpTable {
  std::vector<Layout> need;      // of each input
  std::vector<Layout> gradient;  // that backward leaves for each input
  std::vector<Layout> out;       // of each output
  std::vector<Layout> arrives;   // of the gradient of each output, as backward must find it
  std::vector<Layout> saved;     // of each saved tensor
};

// What is wrong with the cut of an op; empty: nothing.
struct CutFault {
  bool stages = false;  // it is cut over the stages' own ranks
  std::string message;
};

class OpTables {
 public:
  explicit OpTables(const Program& program);

  const OpTable& of(int op, Atoms carried);
  // Asked once for each op before its first table.
  CutFault fault(int op) const;
  // Atoms over which something can lie: of more than one rank, and not the stages' own.
  Atoms living() const { return living_; }
  bool lives(int atom) const { return (living_ >> atom & 1) != 0; }

 private:
  OpTable make(int op, Atoms carried) const;
  Placement need(int op, std::size_t input, int atom, bool carried) const;
  Placement out(int op, std::size_t output, int atom, bool carried) const;
  // The first of the dims by which the op is cut on that atom that `called` has, as `own` calls it.
  Placement cut_as(int op, int atom, const Dims& called, const Dims& own) const;

  const Program& program_;
  const Graph& graph_;
  Atoms living_ = 0;
  std::vector<std::unique_ptr<const OpTable>> plain_;  // of each op, where nothing is carried
  std::map<std::pair<int, Atoms>, OpTable> others_;
};

}  // namespace mw::proving
