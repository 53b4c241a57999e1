// A reduction hook that sends a bucket's gradients in bf16: half the bytes of fp32, at the price
// of rounding.
#include "hooks.h"

namespace dp {
namespace {

class Bf16Reduction : public mw::BucketReduction {
 public:
  explicit Bf16Reduction(const mw::BucketShape& bucket)
      : shards_(bucket.in_shards()), own_(bucket.own_offset), size_(bucket.own_elements) {}

  void start(at::Tensor gradient, mw::Communicator& ranks, mw::Purpose purpose) override {
    gradient_ = std::move(gradient);
    // A copy in any case, as cost() says: BucketShape does not tell bf16 from fp16.
    sent_ = gradient_.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
    if (shards_) {
      came_ = at::empty({size_}, sent_.options());
      pending_ = ranks.reduce_scatter(came_, sent_, mw::Reduction::sum, purpose);
    } else {
      pending_ = ranks.all_reduce(sent_, mw::Reduction::sum, purpose);
    }
  }
  void finish() override {
    pending_.wait();
    shards_ ? gradient_.narrow(0, own_, size_).copy_(came_) : gradient_.copy_(sent_);
    sent_ = came_ = gradient_ = at::Tensor();
  }

 private:
  const bool shards_;
  const std::int64_t own_, size_;
  at::Tensor gradient_, sent_, came_;
  mw::Pending pending_;
};

}  // namespace

mw::ReductionCost Bf16Hook::cost(const mw::BucketShape& bucket) const {
  const bool shards = bucket.in_shards();
  const std::int64_t sent = 2 * bucket.elements;
  mw::ReductionCost cost;
  cost.held = sent + (shards ? 2 * bucket.own_elements : 0);
  cost.start.calls = {{shards ? mw::Collective::reduce_scatter : mw::Collective::all_reduce, sent}};
  cost.start.touched = (bucket.element + 2) * bucket.elements;
  cost.finish.touched = (bucket.element + 2) * (shards ? bucket.own_elements : bucket.elements);
  return cost;
}

std::unique_ptr<mw::BucketReduction> Bf16Hook::make(const mw::BucketShape& bucket,
                                                    at::TensorOptions) const {
  return std::make_unique<Bf16Reduction>(bucket);
}

}  // namespace dp
