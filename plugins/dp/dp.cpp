// Data parallelism: the batch is cut, so every parameter's gradient is a sum over the axis. The
// sums are all-reduced in buckets, as events of the schedule: after the last microbatch, each
// bucket as soon as its gradients are there (Li et al. 2020, "PyTorch Distributed", section 3.2).
#include <fmt/format.h>

#include <map>

#include "hooks.h"
#include "meshwright/choice.h"
#include "meshwright/engine/text.h"
#include "meshwright/json.h"
#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/strategy.h"

namespace {

using mw::Error;
using mw::Json;
using Hook = std::shared_ptr<const mw::ReductionHook>;

// Finds the hooks that a script names. Each name with its options makes one hook.
class Hooks {
 public:
  explicit Hooks(const mw::Values& values)
      : catalog_(values.catalog()), path_(values.path("hook")), reach_(values.reach()) {}

  // `given`: "none", which gives null; a name; or a table of a name and options, dp.powersgd(2).
  // Throws Error (options) for anything else.
  Hook named(const Json& given) {
    if (given == "none") return nullptr;
    const auto choice = mw::named_choice(given);
    if (!choice) {
      throw Error(mw::Stage::options, "option.choice", "hook",
                  fmt::format("got {}; there are {}, or a function", mw::lua_text(given), list()),
                  "leave it out for a plain all-reduce");
    }
    Hook& made = made_[given];
    if (made != nullptr) return made;
    const mw::Registration& found = catalog_.find(mw::Kind::hook, choice->name, "hook");
    mw::Problems problems;
    mw::Values values = found.options().read(choice->options, path_, problems);
    problems.throw_if_any();
    values.set_reach(reach_);
    return made = mw::make<mw::ReductionHook>(found, values);
  }

  std::string list() const { return "\"none\", " + mw::names_of(catalog_, mw::Kind::hook, true); }

 private:
  mw::Catalog& catalog_;
  std::string path_;
  std::shared_ptr<const mw::ScriptReach> reach_;
  std::map<Json, Hook> made_;
};

// The hook, if it can reduce the bucket; else throws, with the key `hook`.
Hook fit_for(const Hook& hook, const mw::BucketShape& bucket) {
  if (hook == nullptr) return nullptr;
  try {
    hook->check(bucket);
  } catch (const Error& error) {
    std::vector<mw::Problem> problems = error.problems();
    for (mw::Problem& problem : problems) problem.key = "hook";
    throw Error(std::move(problems));
  }
  return hook;
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
            "how a bucket is summed: \"none\", as it is; \"bf16\" or \"powersgd\" (both lossy), or "
            "another hook by name; dp.powersgd { … } or another with options; or a function "
            "of the bucket that returns one of these when the plan is made")
        .fallback("none")
        .names(mw::Kind::hook);
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

  std::vector<mw::AxisRequest> axes() const override { return {{"dp", ways_, mw::Role::data}}; }

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
    const auto hooks = std::make_shared<Hooks>(values);
    if (values.is_function("hook")) {
      hook_ = [call = values.function("hook"), hooks](const mw::BucketShape& bucket) {
        const Json returned = call({describe(bucket)});
        Hook hook;
        try {
          hook = hooks->named(returned);
        } catch (const Error& error) {
          // Rethrown: there is such a hook, but its options were refused or it could not be made.
          if (error.problems().front().code != "option.choice") throw;
          throw Error(
              mw::Stage::plan, "function.result", "hook",
              fmt::format("the function returned {} for {}",
                          returned.is_null() ? "nothing" : mw::lua_text(returned), bucket.name),
              fmt::format("return one of {}", hooks->list()));
        }
        return fit_for(hook, bucket);
      };
      hook_note_ = "the hook that the script chooses for each bucket";
      return;
    }
    const Hook hook = hooks->named(values.at("hook"));
    if (hook == nullptr) return;
    hook_ = [hook](const mw::BucketShape& bucket) { return fit_for(hook, bucket); };
    hook_note_ = fmt::format("the hook {}", hook->name());
  }

  int ways_;
  std::int64_t bucket_;
  bool overlap_, each_;
  std::function<Hook(const mw::BucketShape&)> hook_;
  std::string hook_note_;
};

}  // namespace

MESHWRIGHT_PLUGIN("dp", "1.0.0", "data parallelism: batch -> dp, bucketed gradient all-reduce",
                  mw::strategy<DataParallel>(),
                  mw::reduction_hook<dp::Bf16Hook>("bf16",
                                                   "gradients sent in bf16: half of fp32's bytes"),
                  mw::reduction_hook<dp::PowerSgdHook>(
                      "powersgd",
                      "two factors of few columns stand for each gradient matrix "
                      "(Vogels et al. 2019)"))
