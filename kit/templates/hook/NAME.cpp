// The reduction hook @NAME@: how the gradients of a bucket are summed over their ranks. This one
// does it in two halves: backward goes on beside the first, and finish() only fetches the other
// ranks' parts.
#include <ATen/ATen.h>

#include "meshwright/plugin.h"
#include "meshwright/reduction_hook.h"

namespace {

using mw::BucketShape;

// Elements of one rank's part. The last part may be longer than what is left: the rest is padding.
std::int64_t part_of(std::int64_t elements, int ways) {
  return (elements + ways - 1) / ways;
}

class Reduction : public mw::BucketReduction {
 public:
  // Called on the rank's own thread. What is allocated here is what cost() declares.
  void start(at::Tensor gradient, mw::Communicator& ranks, mw::Purpose purpose) override {
    gradient_ = std::move(gradient);
    ranks_ = &ranks;
    purpose_ = purpose;
    const std::int64_t part = part_of(gradient_.numel(), ranks.ways());
    whole_ = at::zeros({part * ranks.ways()}, gradient_.options());
    part_ = at::empty({part}, gradient_.options());
    whole_.narrow(0, 0, gradient_.numel()).copy_(gradient_);
    pending_ = ranks.reduce_scatter(part_, whole_, mw::Reduction::sum, purpose);
  }

  void finish() override {
    pending_.wait();
    ranks_->all_gather(whole_, part_, purpose_).wait();
    gradient_.copy_(whole_.narrow(0, 0, gradient_.numel()));
    whole_ = part_ = gradient_ = at::Tensor();
  }

 private:
  at::Tensor gradient_, whole_, part_;
  mw::Communicator* ranks_ = nullptr;
  mw::Purpose purpose_;
  mw::Pending pending_;
};

class @CLASS@ : public mw::ReductionHook {
 public:
  // The sum is right but for rounding. Where it is not, verify does not call a plan equal to one
  // rank.
  bool exact(const BucketShape&) const override { return true; }

  // What start and finish send and allocate, in bytes: the prediction is as right as this is.
  mw::ReductionCost cost(const BucketShape& bucket) const override {
    const std::int64_t part = part_of(bucket.elements, bucket.ways) * bucket.element;
    const std::int64_t whole = part * bucket.ways;
    mw::ReductionCost cost;
    cost.start.calls = {{mw::Collective::reduce_scatter, whole}};
    cost.start.touched = 2 * whole;
    cost.finish.calls = {{mw::Collective::all_gather, whole}};
    cost.finish.touched = 2 * whole;
    cost.held = whole + part;
    return cost;
  }

  std::unique_ptr<mw::BucketReduction> make(const BucketShape&, at::TensorOptions) const override {
    return std::make_unique<Reduction>();
  }
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "gradients reduce-scattered, then gathered",
                  mw::reduction_hook<@CLASS@>())
