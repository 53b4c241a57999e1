// How a bucket's gradients are summed over their ranks, where that is not one plain all-reduce:
// cast to fewer bits, compressed, or in some way of a plugin's own.
//
// A hook belongs to the plan and keeps nothing; what a rank keeps for a bucket from step to step is
// its BucketReduction. What it sends and allocates is declared by cost(), from which the
// predictor's bytes, times and memory come: they are right as far as the declaration is.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/registration.h"

namespace mw {

// A bucket on one rank. Its flat gradient holds the parameters one after the other, contiguous.
struct BucketShape {
  std::string name;
  std::vector<std::string> parameters;            // names
  std::vector<std::vector<std::int64_t>> shapes;  // of their local parts
  std::int64_t elements = 0;                      // of the flat tensor
  int element = 4;                                // bytes of one
  int ways = 1;                                   // ranks of the reduction
};

// What one reduction takes on one rank; all sizes in bytes.
struct ReductionCost {
  struct Call {
    Collective op = Collective::all_reduce;
    std::int64_t bytes = 0;  // of the larger of the rank's two buffers
  };
  struct Phase {
    std::vector<Call> calls;     // in the order in which they are made
    std::int64_t workspace = 0;  // highest of what it allocates and lets go, beside `held`
    std::int64_t touched = 0;    // read and written by local work
    double flops = 0;
  };
  Phase start, finish;
  std::int64_t kept = 0;  // from step to step
  std::int64_t held = 0;  // allocated by start and alive until finish returns
};

// A bucket's reductions on one rank, one after the other. Used in the rank's thread; what it
// allocates is booked as buffers.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;
  // Begins: `gradient` is the flat tensor, and lives and is left alone by others until finish()
  // returns. Should wait for nothing, so that backward goes on beside the transfer. `purpose` goes
  // with each collective.
  virtual void start(at::Tensor gradient, Communicator& ranks, Purpose purpose) = 0;
  // Leaves the sum over the ranks, or what stands for it, in the tensor:
  // bit for bit the same on all ranks.
  virtual void finish() = 0;
  // What it keeps from step to step. Checkpoints hold it, and a run that goes on in the same mix
  // writes it back into these tensors before the next reduction: as many each time, of the same
  // shapes and dtypes. Called between reductions.
  virtual std::vector<at::Tensor> state() { return {}; }
};

class ReductionHook : public Registered {
 public:
  // Throws Error (plan) for a bucket that it cannot reduce. Its message says why.
  virtual void check(const BucketShape&) const {}
  // Whether the sum is right but for rounding of the gradients' own type; if not, `verify` cannot
  // call the mix equal to one rank.
  virtual bool exact(const BucketShape& bucket) const = 0;
  virtual ReductionCost cost(const BucketShape& bucket) const = 0;
  // Once for each rank and bucket. `options`: of the gradients.
  virtual std::unique_ptr<BucketReduction> make(const BucketShape& bucket,
                                                at::TensorOptions options) const = 0;
};

template <>
struct KindOf<ReductionHook> {
  static constexpr Kind kind = Kind::hook;
  using Make = std::unique_ptr<ReductionHook>(const Values& values);
};
template <class Class>
constexpr Registration reduction_hook(const char* name = nullptr, const char* doc = nullptr) {
  return registration<ReductionHook, Class>(name, doc);
}

}  // namespace mw
