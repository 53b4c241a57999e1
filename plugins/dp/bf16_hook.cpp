// A reduction hook that sends a bucket's gradients in bf16: half the bytes of fp32, at the price
// of rounding.
#include "hooks.h"

namespace dp {
namespace {

class Bf16Reduction : public mw::BucketReduction {
 public:
  void start(at::Tensor gradient, mw::Communicator& ranks, mw::Purpose purpose) override {
    gradient_ = std::move(gradient);
    // A copy in any case, as cost() says: BucketShape does not tell bf16 from fp16.
    sent_ = gradient_.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
    pending_ = ranks.all_reduce(sent_, mw::Reduction::sum, purpose);
  }
  void finish() override {
    pending_.wait();
    gradient_.copy_(sent_);
    sent_ = at::Tensor();
    gradient_ = at::Tensor();
  }

 private:
  at::Tensor gradient_, sent_;
  mw::Pending pending_;
};

}  // namespace

mw::ReductionCost Bf16Hook::cost(const mw::BucketShape& bucket) const {
  mw::ReductionCost cost;
  cost.held = 2 * bucket.elements;
  cost.start.calls = {{mw::Collective::all_reduce, cost.held}};
  cost.start.touched = cost.finish.touched = (bucket.element + 2) * bucket.elements;
  return cost;
}

std::unique_ptr<mw::BucketReduction> Bf16Hook::make(const mw::BucketShape&,
                                                    at::TensorOptions) const {
  return std::make_unique<Bf16Reduction>();
}

}  // namespace dp
