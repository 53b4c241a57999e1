// A reduction hook for tests that want one of their own: the plain sum, of which they change what
// they are about.
#pragma once

#include <memory>
#include <utility>

#include "meshwright/reduction_hook.h"

namespace mw::test {

// The sum over the ranks as it is, in one piece.
class PlainReduction : public BucketReduction {
 public:
  void start(at::Tensor gradient, Communicator& ranks, Purpose purpose) override {
    pending_ = ranks.all_reduce(std::move(gradient), Reduction::sum, purpose);
  }
  void finish() override { pending_.wait(); }

 private:
  Pending pending_;
};

class PlainSum : public ReductionHook {
 public:
  bool exact(const BucketShape&) const override { return true; }
  ReductionCost cost(const BucketShape& bucket) const override {
    ReductionCost cost;
    cost.start.calls = {{Collective::all_reduce, bucket.elements * bucket.element}};
    return cost;
  }
  std::unique_ptr<BucketReduction> make(const BucketShape&, at::TensorOptions) const override {
    return std::make_unique<PlainReduction>();
  }
};

}  // namespace mw::test
