// Data parallelism: the batch is cut, so every parameter's gradient is a sum over the axis. The
// sums are all-reduced in buckets, as events of the schedule: after the last microbatch, each
// bucket as soon as its gradients are there (Li et al. 2020, "PyTorch Distributed", section 3.2).
#include <fmt/format.h>

#include <algorithm>

#include "hooks.h"
#include "meshwright/json_text.h"
#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/strategy.h"

namespace {

using mw::Error;
using mw::Json;
using Hook = std::shared_ptr<const mw::ReductionHook>;

const std::vector<std::string> hook_names = {"none", "bf16", "powersgd"};
constexpr const char* hook_list = "\"none\", \"bf16\", \"powersgd\"";

bool is_hook(const std::string& name) {
  return std::find(hook_names.begin(), hook_names.end(), name) != hook_names.end();
}

// Null for "none".
Hook make_hook(const std::string& name, std::int64_t rank, const mw::BucketShape& bucket) {
  if (name == "bf16") return dp::bf16_hook();
  if (name != "powersgd") return nullptr;
  if (bucket.element < 4) {
    throw Error(mw::Stage::plan, "hook.dtype", "hook",
                fmt::format("powersgd factors gradients, and {} has them in {} bytes each",
                            bucket.name, bucket.element),
                "write main_gradients = \"fp32\" in the experiment");
  }
  return dp::powersgd_hook(rank);
}

Json describe(const mw::BucketShape& bucket) {
  return {{"name", bucket.name},
          {"bytes", bucket.elements * bucket.element},
          {"parameters", bucket.parameters},
          {"ways", bucket.ways}};
}

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
        .any(
            "hook",
            fmt::format("how a bucket is summed: {} (both lossy), or a function of the bucket that "
                        "returns one of these when the plan is made",
                        hook_list))
        .fallback("none")
        .integer("hook_rank", "powersgd: columns of the factors that stand for a gradient matrix")
        .fallback(4)
        .range(1, 1 << 16);
  }

  explicit DataParallel(const mw::Values& values)
      : ways_(values.int32("ways")),
        bucket_(values.integer("bucket")),
        overlap_(values.flag("overlap")),
        each_(values.text("reduce") == "each") {
    read_hook(values);
    if (each_ && hook_) {
      throw Error(mw::Stage::options, "option.conflict", "reduce",
                  "\"each\" does not go with a hook: the sum so far would be compressed "
                  "again with every microbatch",
                  "write reduce = \"last\", or hook = \"none\"");
    }
  }

  std::vector<mw::AxisRequest> axes() const override { return {{"dp", ways_, {}}}; }

  void edit(mw::Draft& draft) const override {
    draft.shard("batch", "dp");
    draft.add_pass(mw::bucket_gradients(bucket_));
    if (overlap_ && ways_ > 1) draft.add_pass(mw::overlap_gradient_reduction());
    if (each_) draft.add_pass(mw::reduce_each_microbatch("dp"));
    if (!hook_) return;
    draft.add_pass(mw::hook_reductions("dp", hook_));
    draft.note(fmt::format("dp({}): gradients are summed by {}", ways_, hook_note_));
  }

 private:
  void read_hook(const mw::Values& values) {
    const std::int64_t rank = values.integer("hook_rank");
    if (values.is_function("hook")) {
      hook_ = [call = values.function("hook"), rank](const mw::BucketShape& bucket) {
        const Json returned = call({describe(bucket)});
        if (!returned.is_string() || !is_hook(returned.get<std::string>())) {
          throw Error(
              mw::Stage::plan, "function.result", "hook",
              fmt::format("the function returned {} for {}",
                          returned.is_null() ? "nothing" : mw::json_text(returned), bucket.name),
              fmt::format("return one of {}", hook_list));
        }
        return make_hook(returned.get<std::string>(), rank, bucket);
      };
      hook_note_ = "the hook that the script chooses for each bucket";
      return;
    }
    const Json& given = values.at("hook");
    if (!given.is_string() || !is_hook(given.get<std::string>())) {
      const std::string near =
          given.is_string() ? mw::nearest(given.get<std::string>(), hook_names) : "";
      throw Error(
          mw::Stage::options, "option.choice", "hook",
          fmt::format("got {}; there are {}, or a function", mw::json_text(given), hook_list),
          near.empty() ? "leave it out for a plain all-reduce"
                       : fmt::format("did you mean \"{}\"?", near));
    }
    const auto name = given.get<std::string>();
    if (name == "none") return;
    hook_ = [name, rank](const mw::BucketShape& bucket) { return make_hook(name, rank, bucket); };
    hook_note_ = name == "powersgd" ? fmt::format("powersgd of rank {}, which loses bits", rank)
                                    : name + ", which loses bits";
  }

  int ways_;
  std::int64_t bucket_;
  bool overlap_, each_;
  std::function<Hook(const mw::BucketShape&)> hook_;
  std::string hook_note_;
};

}  // namespace

MESHWRIGHT_PLUGIN(DataParallel, "dp", "1.0.0",
                  "data parallelism: batch -> dp, bucketed gradient all-reduce")
