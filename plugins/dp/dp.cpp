// Data parallelism: the batch is cut, so every parameter's gradient is a sum over the axis. The sums
// are all-reduced in buckets, as events of the schedule: after the last microbatch, each bucket as
// soon as its gradients are there (Li et al. 2020, "PyTorch Distributed", section 3.2).
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

class DataParallel : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks that the batch is split over")
        .range(1, 1 << 20)
        .positional("ways")
        .bytes("bucket", "gradients of one all-reduce")
        .fallback("25MiB")
        .at_least(1)
        .unit("bytes")
        .boolean("overlap", "start each bucket's all-reduce inside the last microbatch's backward")
        .fallback(true)
        .choice("hook", {"none"}, "what compresses a bucket before its all-reduce; nothing so far")
        .fallback("none");
  }
  explicit DataParallel(const mw::Values& values)
      : ways_(static_cast<int>(values.integer("ways"))),
        bucket_(values.integer("bucket")),
        overlap_(values.flag("overlap")) {}

  std::vector<mw::AxisRequest> axes() const override { return {{"dp", ways_, {}}}; }

  void edit(mw::Draft& draft) const override {
    draft.shard("batch", "dp");
    draft.add_pass(mw::bucket_gradients(bucket_));
    if (overlap_ && ways_ > 1) draft.add_pass(mw::overlap_gradient_reduction());
  }

 private:
  int ways_;
  std::int64_t bucket_;
  bool overlap_;
};

}  // namespace

MESHWRIGHT_PLUGIN(DataParallel, "dp", "1.0.0",
                  "data parallelism: batch -> dp, bucketed gradient all-reduce")
