// A hook of a plugin's own: dp's buckets are summed by a reduce-scatter and an all-gather, which a
// plain all-reduce is in one. Nothing is lost, so the mix still equals one rank.
#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/strategy.h"

namespace {

std::int64_t part_of(const mw::BucketShape& bucket) {
  return (bucket.elements + bucket.ways - 1) / bucket.ways;
}

class ScatteredSum : public mw::BucketReduction {
 public:
  explicit ScatteredSum(const mw::BucketShape& bucket) : part_(part_of(bucket)) {}

  void start(at::Tensor gradient, mw::Communicator& ranks, mw::Purpose purpose) override {
    gradient_ = std::move(gradient);
    ranks_ = &ranks;
    purpose_ = purpose;
    whole_ = at::zeros({part_ * ranks.ways()}, gradient_.options());
    whole_.narrow(0, 0, gradient_.numel()).copy_(gradient_);
    own_ = at::empty({part_}, gradient_.options());
    pending_ = ranks.reduce_scatter(own_, whole_, mw::Reduction::sum, purpose);
  }

  void finish() override {
    pending_.wait();
    ranks_->all_gather(whole_, own_, purpose_).wait();
    gradient_.copy_(whole_.narrow(0, 0, gradient_.numel()));
    whole_ = own_ = gradient_ = at::Tensor();
  }

 private:
  const std::int64_t part_;
  at::Tensor gradient_, whole_, own_;
  mw::Communicator* ranks_ = nullptr;
  mw::Purpose purpose_;
  mw::Pending pending_;
};

class ScatteredHook : public mw::ReductionHook {
 public:
  std::string name() const override { return "scattered_sum"; }
  bool exact(const mw::BucketShape&) const override { return true; }
  mw::ReductionCost cost(const mw::BucketShape& bucket) const override {
    const std::int64_t part = bucket.element * part_of(bucket), whole = bucket.ways * part;
    mw::ReductionCost cost;
    cost.start.calls = {{mw::Collective::reduce_scatter, whole}};
    cost.finish.calls = {{mw::Collective::all_gather, whole}};
    cost.held = whole + part;
    cost.start.touched = cost.finish.touched = 2 * whole;
    return cost;
  }
  std::unique_ptr<mw::BucketReduction> make(const mw::BucketShape& bucket,
                                            at::TensorOptions) const override {
    return std::make_unique<ScatteredSum>(bucket);
  }
};

class Scattered : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options().text("axis", "whose reductions").fallback("dp").positional("axis");
  }
  explicit Scattered(const mw::Values& values) : axis_(values.text("axis")) {}

  std::vector<mw::AxisRequest> axes() const override { return {}; }
  void edit(mw::Draft& draft) const override {
    draft.add_pass(mw::hook_reductions(axis_, [hook = std::make_shared<ScatteredHook>()](
                                                  const mw::BucketShape&) { return hook; }));
  }

 private:
  std::string axis_;
};

}  // namespace

MESHWRIGHT_PLUGIN("scattered_sum", "1.0.0", "sums gradients by reduce-scatter, all-gather",
                  mw::strategy<Scattered>())
