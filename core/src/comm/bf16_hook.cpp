// A reduction hook that sends a bucket's gradients in bf16: half the bytes of fp32, at the price
// of rounding.
#include "comm/hooks.h"

namespace mw {
namespace {

class Bf16Reduction : public BucketReduction {
 public:
  void start(at::Tensor gradient, Communicator& ranks, Purpose purpose) override {
    gradient_ = std::move(gradient);
    sent_ = gradient_.to(at::kBFloat16);
    pending_ = ranks.all_reduce(sent_, Reduction::sum, purpose);
  }
  void finish() override {
    pending_.wait();
    gradient_.copy_(sent_);
    sent_ = at::Tensor();
    gradient_ = at::Tensor();
  }

 private:
  at::Tensor gradient_, sent_;
  Pending pending_;
};

class Bf16Hook : public ReductionHook {
 public:
  bool exact(const BucketShape&) const override { return false; }
  ReductionCost cost(const BucketShape& bucket) const override {
    ReductionCost cost;
    cost.held = 2 * bucket.elements;
    cost.start.calls = {{Collective::all_reduce, cost.held}};
    cost.start.touched = cost.finish.touched = (bucket.element + 2) * bucket.elements;
    return cost;
  }
  std::unique_ptr<BucketReduction> make(const BucketShape&, at::TensorOptions) const override {
    return std::make_unique<Bf16Reduction>();
  }
};

}  // namespace

std::vector<Registration> built_in_hooks() {
  return {reduction_hook<Bf16Hook>("bf16", "gradients sent in bf16: half the bytes of fp32"),
          powersgd_hook};
}

}  // namespace mw
