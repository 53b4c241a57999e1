// What the kernels of an op allocate for themselves while they run: as the op declares it, or as a
// trial on this machine measures it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "meshwright/op.h"

namespace mw {

struct Scratch {
  std::int64_t bytes = 0;
  bool measured = true;        // or declared; else an estimate
  std::int64_t estimated = 0;  // bytes, at most, of one that is an estimate
};

// A piece of an op as a rank's thread runs it.
struct KernelTrial {
  struct Input {
    at::ScalarType type;
    bool wanted = false;  // its gradient
    bool added = false;   // to a tensor that is there, as a parameter's is; else it is fresh
  };
  const Op& op;
  Piece piece;
  LocalDims dims;
  at::ScalarType real = at::kFloat;
  int threads = 1;
  std::vector<Input> inputs = {};
  std::vector<at::ScalarType> outputs = {};
  Sparse sparse = {};  // Graph::sparse
};

// Runs the piece once, in a thread of its own, on operands of zeros: the bytes that it took at its
// highest beyond what it left. Nothing if it failed.
std::optional<std::int64_t> try_scratch(const KernelTrial& trial);

// What the piece takes: tried, once in a process. One of too many operations, for which no plan
// should wait, is tried with smaller dims, twice; the larger trial and what grows with the operands
// from the one to the other are then an estimate. 0, as an estimate, if it fails.
Scratch scratch_of(const KernelTrial& trial);

// What kernels allocate for themselves on a device that is not this machine's CPU. Nothing is
// tried.
class DeviceScratch {
 public:
  virtual ~DeviceScratch() = default;
  virtual std::int64_t workspace(const Cost& cost) const {
    return cost.accelerator_workspace.value_or(cost.workspace.value_or(0));
  }
};

}  // namespace mw
