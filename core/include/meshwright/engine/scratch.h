// The scratch of an op's kernels, the memory that they allocate and free while they run: as the op
// declares it, or as a trial on this machine measures it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "meshwright/op.h"

namespace mw {

struct Scratch {
  std::int64_t bytes = 0;
  bool measured = true;        // whether `bytes` are measured or declared, not an estimate
  std::int64_t estimated = 0;  // the most bytes that are an estimate
};

// A piece of an op with all that decides its scratch: dims, dtypes, threads, wanted gradients.
struct KernelTrial {
  struct Input {
    at::ScalarType type;
    bool wanted = false;  // whether backward makes the input's gradient
    bool added = false;   // whether the gradient is added to an existing tensor
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

// Runs the piece once, in a thread of its own, on operands of zeros. Returns the most bytes that it
// allocated at a time, beyond its results; nothing if it failed.
std::optional<std::int64_t> try_scratch(const KernelTrial& trial);

// The scratch of a piece, by one trial per process. A piece with too many operations is tried twice
// with smaller dims instead, and its scratch is extrapolated with the size of the operands, as an
// estimate. If the trial fails, the scratch is 0, as an estimate.
Scratch scratch_of(const KernelTrial& trial);

// The scratch of kernels on a device that is not this machine's CPU, where nothing is tried.
class DeviceScratch {
 public:
  virtual ~DeviceScratch() = default;
  virtual std::int64_t workspace(const Cost& cost) const {
    return cost.accelerator_workspace.value_or(cost.workspace.value_or(0));
  }
};

}  // namespace mw
