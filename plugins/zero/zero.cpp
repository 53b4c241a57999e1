// ZeRO (Rajbhandari et al. 2020): data parallelism in which each rank keeps its part of the
// optimizer state (stage 1), of the gradients too (2), of the parameters too (3). Hybrid sharding
// is the same with parts inside groups of ranks and copies across them.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"
#include "shard_storage.h"

namespace {

class Zero : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks that the batch is split over")
        .range(1, 1 << 20)
        .positional("ways")
        .integer("stage", "what is sharded: 1 optimizer state, 2 gradients too, 3 parameters too")
        .fallback(1)
        .range(1, 3)
        .integer(
            "replicas",
            "copies of the model among these ranks; parts are kept inside ways / replicas ranks "
            "(at stage 1: a sub-group's scope)")
        .fallback(1)
        .range(1, 1 << 20)
        .integer("prefetch", "stage 3: layers whose parameters are gathered ahead")
        .fallback(usual_prefetch)
        .range(0, 1024)
        .boolean("keep", "stage 3: gather once a step, not again for each forward and backward")
        .fallback(false)
        .choice("reduce", {"each", "chunk"},
                "stages 2 and 3: gradients are reduced in every microbatch; or added up whole and "
                "reduced when a stage turns to another chunk of the model")
        .fallback("each")
        .boolean("sequence",
                 "state is sharded over the ranks that split the sequence too, beside its own")
        .fallback(false)
        .bytes("bucket",
               "gradients that are reduced together, at most (stage 1; stage 2 also parts them by "
               "layer)")
        .fallback("25MiB")
        .at_least(1)
        .choice(
            "offload", {"none", "optimizer", "parameters"},
            "what lies in host memory and is updated there: optimizer state; at stage 3 a rank's "
            "parts of parameters too")
        .fallback("none");
  }

  explicit Zero(const mw::Values& values)
      : ways_(values.int32("ways")),
        stage_(values.int32("stage")),
        replicas_(values.int32("replicas")),
        prefetch_(values.int32("prefetch")),
        keep_(values.flag("keep")),
        by_chunk_(values.text("reduce") == "chunk"),
        sequence_(values.flag("sequence")),
        bucket_(values.integer("bucket")),
        offload_(values.text("offload") == "none"        ? mw::Offload::nothing
                 : values.text("offload") == "optimizer" ? mw::Offload::optimizer
                                                         : mw::Offload::parameters) {
    if (offload_ == mw::Offload::parameters && stage_ < 3) {
      throw mw::Error(
          mw::Stage::options, "option.conflict", "offload",
          fmt::format("zero({}): offload = \"parameters\" at stage {}, where every rank computes "
                      "with all parameters it holds",
                      ways_, stage_),
          "nearest: offload = \"optimizer\", or stage = 3");
    }
    if (keep_ && stage_ < 3) {
      throw mw::Error(mw::Stage::options, "option.conflict", "keep",
                      fmt::format("zero({}): keep = true at stage {}, where parameters stay whole",
                                  ways_, stage_),
                      "leave keep out, or write stage = 3");
    }
    if (by_chunk_ && stage_ == 1) {
      throw mw::Error(mw::Stage::options, "option.conflict", "reduce",
                      fmt::format("zero({}): reduce = \"chunk\" at stage 1, where gradients stay "
                                  "whole and are reduced once a step",
                                  ways_),
                      "leave reduce out, or write stage = 2");
    }
    refuse_idle_options();
    if (ways_ % replicas_ != 0) {
      int below = std::min(replicas_, ways_), above = replicas_;
      while (ways_ % below != 0) --below;
      while (above < ways_ && ways_ % above != 0) ++above;
      const std::string more = above <= ways_ ? fmt::format(" or {}", above) : "";
      throw mw::Error(
          mw::Stage::options, "option.divides", "replicas",
          fmt::format("zero({}): {} replicas do not divide {} ranks", ways_, replicas_, ways_),
          fmt::format("nearest: replicas = {}{}", below, more));
    }
  }

  std::vector<mw::AxisRequest> axes() const override {
    std::vector<mw::AxisRequest> axes{{"zero", ways_, mw::Role::data}};
    if (replicas_ > 1) {
      axes.push_back({parts_axis(), ways_ / replicas_, mw::Role::data, {"zero"}});
    }
    return axes;
  }

  void edit(mw::Draft& draft) const override {
    draft.shard("batch", "zero");
    if (stage_ < 3) draft.add_pass(mw::bucket_gradients(bucket_));
    zero::ShardedStorage storage;
    storage.axes = {parts_axis()};
    if (sequence_) {
      for (const mw::Axis& axis : draft.mesh().with_role(mw::Role::sequence)) {
        if (!axis.borrowed) storage.axes.push_back(axis.name);
      }
      if (storage.axes.size() == 1) {
        draft.refuse(
            "axis.unknown", "sequence",
            fmt::format("zero({}).sequence: no axis of the plan splits the sequence", ways_),
            "leave sequence out, or add sp { n }");
        return;
      }
    }
    note_copies(draft, storage.axes);
    if (ways_ > 1 || sequence_) draft.add_pass(mw::overlap_gradient_reduction());
    storage.sharded_state = stage_ == 1   ? mw::ShardedState::optimizer
                            : stage_ == 2 ? mw::ShardedState::gradients
                                          : mw::ShardedState::parameters;
    storage.prefetch = prefetch_;
    storage.reshard_after_forward = !(keep_ && stage_ == 3);
    storage.by_chunk = by_chunk_;
    storage.offload = offload_;
    draft.add_pass(zero::shard_storage(storage));
  }

  std::vector<mw::Lighter> lighter() const override {
    std::vector<mw::Lighter> variants;
    if (by_chunk_) variants.push_back({"ZeRO stage", {{"reduce", "each"}}});
    for (int stage = stage_ + 1; stage <= 3; ++stage) {
      mw::Json options = {{"stage", stage}};
      if (stage == 3 && bucket_ != usual_bucket) options["bucket"] = usual_bucket;
      if (by_chunk_) options["reduce"] = "each";
      variants.push_back({"ZeRO stage", options});
    }
    if (keep_) {
      mw::Json options = {{"keep", false}};
      if (by_chunk_) options["reduce"] = "each";
      variants.push_back({"ZeRO stage", options});
    }
    if (offload_ == mw::Offload::nothing)
      variants.push_back({"offload", {{"offload", "optimizer"}}, true});
    if (offload_ != mw::Offload::parameters && stage_ == 3)
      variants.push_back({"offload", {{"offload", "parameters"}}, true});
    return variants;
  }

 private:
  static constexpr std::int64_t usual_bucket = 25 << 20;
  static constexpr int usual_prefetch = 1;

  // What was written and would change nothing.
  void refuse_idle_options() const {
    const auto refuse = [&](const char* key, const std::string& why, const std::string& hint) {
      throw mw::Error(mw::Stage::options, "option.needs", key,
                      fmt::format("zero({}): {}", ways_, why), hint);
    };
    if (prefetch_ != usual_prefetch && stage_ < 3) {
      refuse("prefetch",
             fmt::format("prefetch = {} at stage {}, where no parameters are gathered ahead",
                         prefetch_, stage_),
             "leave prefetch out, or write stage = 3");
    }
    if (prefetch_ != usual_prefetch && keep_) {
      refuse("prefetch",
             fmt::format("prefetch = {} with keep = true, which gathers all parameters at the "
                         "start of a step",
                         prefetch_),
             "leave prefetch out, or keep");
    }
    if (bucket_ != usual_bucket && stage_ == 3) {
      refuse("bucket",
             fmt::format("bucket = {} bytes at stage 3, which reduces gradients layer by layer",
                         bucket_),
             "leave bucket out, or write stage = 1 or 2");
    }
  }

  // Ranks that are alone on the axes that shard.
  void note_copies(mw::Draft& draft, const std::vector<std::string>& axes) const {
    if (std::any_of(axes.begin(), axes.end(),
                    [&](const std::string& axis) { return draft.mesh().axis(axis).ways > 1; }))
      return;
    const std::string why =
        ways_ == 1 ? "one rank" : fmt::format("replicas = {}, a copy on each rank", replicas_);
    draft.note(fmt::format("zero({}): {}: nothing is sharded, whatever the stage", ways_, why));
  }

  std::string parts_axis() const { return replicas_ > 1 ? "zero_parts" : "zero"; }

  int ways_, stage_, replicas_, prefetch_;
  bool keep_, by_chunk_, sequence_;
  std::int64_t bucket_;
  mw::Offload offload_;
};

}  // namespace

MESHWRIGHT_PLUGIN("zero", "1.0.0",
                  "ZeRO: optimizer state, gradients, parameters sharded over data-parallel ranks",
                  mw::strategy<Zero>())
