// A reduction hook that sends a bucket's largest elements alone, and adds what it left out to the
// next step's gradient (Lin et al. 2018, "Deep Gradient Compression"; error feedback: Stich et al.
// 2018). Elements differ from rank to rank, so values and places are gathered, not summed on the
// way.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "meshwright/plugin.h"
#include "meshwright/reduction_hook.h"

namespace {

using mw::BucketShape;
using mw::Collective;

constexpr std::int64_t place_bytes = sizeof(std::int64_t);

class TopKReduction : public mw::BucketReduction {
 public:
  TopKReduction(std::int64_t count, std::int64_t elements, at::TensorOptions options)
      : count_(count), errors_(at::zeros({elements}, options)) {}

  void start(at::Tensor gradient, mw::Communicator& ranks, mw::Purpose purpose) override {
    gradient_ = std::move(gradient);
    values_ = at::empty({count_}, gradient_.options());
    all_values_ = at::empty({count_ * ranks.ways()}, gradient_.options());
    all_places_ = at::empty({count_ * ranks.ways()}, at::kLong);
    gradient_.add_(errors_);
    places_ = std::get<1>(gradient_.abs().topk(count_));
    at::index_select_out(values_, gradient_, 0, places_);
    errors_.copy_(gradient_);
    errors_.index_fill_(0, places_, 0);
    pending_values_ = ranks.all_gather(all_values_, values_, purpose);
    pending_places_ = ranks.all_gather(all_places_, places_, purpose);
  }

  // In the same order on all ranks, so that they end with the same bits.
  void finish() override {
    pending_values_.wait();
    pending_places_.wait();
    gradient_.zero_();
    gradient_.index_add_(0, all_places_, all_values_);
    gradient_ = values_ = places_ = all_values_ = all_places_ = at::Tensor();
  }

 private:
  std::int64_t count_;
  at::Tensor errors_, gradient_, values_, places_, all_values_, all_places_;
  mw::Pending pending_values_, pending_places_;
};

class TopK : public mw::ReductionHook {
 public:
  static mw::Options options() {
    return mw::Options()
        .number("fraction", "part of a bucket's elements that is sent")
        .fallback(0.01)
        .range(1e-6, 1)
        .positional("fraction");
  }
  explicit TopK(const mw::Values& values) : fraction_(values.number("fraction")) {}

  bool exact(const BucketShape& bucket) const override { return count(bucket) == bucket.elements; }

  mw::ReductionCost cost(const BucketShape& bucket) const override {
    const std::int64_t k = count(bucket), all = k * bucket.ways;
    const std::int64_t whole = bucket.elements * bucket.element;
    mw::ReductionCost cost;
    cost.start.calls = {{Collective::all_gather, all * bucket.element},
                        {Collective::all_gather, all * place_bytes}};
    cost.start.workspace = whole + k * bucket.element;  // what topk is given, and its values
    cost.start.touched = 6 * whole;
    cost.finish.touched = whole + 2 * all * bucket.element;
    cost.kept = whole;
    cost.held = (k + all) * (bucket.element + place_bytes);
    return cost;
  }

  std::unique_ptr<mw::BucketReduction> make(const BucketShape& bucket,
                                            at::TensorOptions options) const override {
    return std::make_unique<TopKReduction>(count(bucket), bucket.elements, options);
  }

 private:
  std::int64_t count(const BucketShape& bucket) const {
    const double part = fraction_ * static_cast<double>(bucket.elements);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(part)), 1, bucket.elements);
  }

  double fraction_;
};

}  // namespace

MESHWRIGHT_PLUGIN("topk", "1.0.0", "the largest elements of a bucket, with error feedback",
                  mw::reduction_hook<TopK>())
