// Data parallelism: the batch is cut, so every parameter's gradient is a sum over the axis. The
// sums are all-reduced in buckets, as events of the schedule: after the last microbatch, each
// bucket as soon as its gradients are there (Li et al. 2020, "PyTorch Distributed", section 3.2).
#include <fmt/format.h>

#include "hooks.h"
#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/reduction_hook.h"
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
        .choice("reduce", {"last", "each"},
                "all-reduce after the last microbatch, or after each one")
        .fallback("last")
        .any("hook",
             "how a bucket is summed: \"none\", as it is; \"bf16\", \"int8\" or \"powersgd\" (they "
             "lose bits), or another hook by name; dp.powersgd { … } or another with options; or a "
             "function of the bucket that returns one of these when the plan is made")
        .fallback("none")
        .names(mw::Kind::hook);
  }

  explicit DataParallel(const mw::Values& values)
      : ways_(values.int32("ways")),
        bucket_(values.integer("bucket")),
        overlap_(values.flag("overlap")),
        each_(values.text("reduce") == "each"),
        hook_(mw::read_hook(values, "hook")) {
    if (each_ && hook_.choose) {
      throw mw::Error(mw::Stage::options, "option.conflict", "reduce",
                      "\"each\" does not go with a hook: the sum so far would be compressed "
                      "again with every microbatch",
                      "write reduce = \"last\", or hook = \"none\"");
    }
  }

  std::vector<mw::AxisRequest> axes() const override { return {{"dp", ways_, mw::Role::data}}; }

  void edit(mw::Draft& draft) const override {
    draft.shard("batch", "dp");
    draft.add_pass(mw::bucket_gradients(bucket_));
    if (overlap_ && ways_ > 1) draft.add_pass(mw::overlap_gradient_reduction());
    if (each_) draft.add_pass(mw::reduce_each_microbatch("dp"));
    if (hook_.choose) draft.add_pass(mw::hook_reductions("dp", hook_.choose, hook_.note));
  }

 private:
  int ways_;
  std::int64_t bucket_;
  bool overlap_, each_;
  mw::HookChoice hook_;
};

}  // namespace

MESHWRIGHT_PLUGIN(
    "dp", "1.0.0", "data parallelism: batch -> dp, bucketed gradient all-reduce",
    mw::strategy<DataParallel>(),
    mw::reduction_hook<dp::Bf16Hook>("bf16", "gradients sent in bf16: half of fp32's bytes"),
    mw::reduction_hook<dp::Int8Hook>("int8",
                                     "gradients, and parameters that ZeRO gathers, sent in int8 "
                                     "with a scale for each 256 elements (Wang et al. 2023)"),
    mw::reduction_hook<dp::PowerSgdHook>(
        "powersgd",
        "two factors of few columns stand for each gradient matrix "
        "(Vogels et al. 2019)"))
