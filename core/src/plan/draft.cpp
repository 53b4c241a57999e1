// The plan while strategies edit it: takes their rules and passes, and refuses what names a dim
// or an axis that is not there.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "meshwright/engine/op_cost.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "meshwright/passes.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/strategy.h"
#include "plan/axes.h"

namespace mw {
namespace {

// Wraps a strategy's predicate over ops or values: whatever it throws names the strategy.
template <class Argument>
std::function<bool(const Argument&)> guarded(const PluginPlace& speaker,
                                             std::function<bool(const Argument&)> where) {
  if (!where) return where;
  return [speaker, where = std::move(where)](const Argument& asked) {
    return call_plugin(speaker, "chose where a rule holds", [&] { return where(asked); });
  };
}

// Whether the ranges cover the whole dim, each element once.
bool covers(std::vector<Range> order, std::int64_t size) {
  std::sort(order.begin(), order.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  std::int64_t end = 0;
  for (const Range& range : order) {
    if (range.offset != end || range.size < 1 || range.size > size - end) return false;
    end += range.size;
  }
  return end == size;
}

// Wraps a plugin's reduction: whatever it throws names the plugin.
class GuardedReduction final : public BucketReduction {
 public:
  GuardedReduction(std::unique_ptr<BucketReduction> inner, const PluginPlace& speaker)
      : inner_(std::move(inner)), speaker_(speaker) {}

  void start(at::Tensor gradient, Communicator& ranks, Purpose purpose) override {
    call_plugin(
        speaker_, "began a reduction", [&] { inner_->start(std::move(gradient), ranks, purpose); },
        Stage::run);
  }
  void finish() override {
    call_plugin(
        speaker_, "ended a reduction", [&] { inner_->finish(); }, Stage::run);
  }
  std::vector<at::Tensor> state() override {
    return call_plugin(
        speaker_, "gave what it keeps", [&] { return inner_->state(); }, Stage::run);
  }

 private:
  const std::unique_ptr<BucketReduction> inner_;
  const PluginPlace speaker_;
};

class GuardedGather final : public BucketGather {
 public:
  GuardedGather(std::unique_ptr<BucketGather> inner, PluginPlace speaker)
      : inner_(std::move(inner)), speaker_(std::move(speaker)) {}
  void start(at::Tensor shard, at::Tensor whole, Communicator& ranks, Purpose purpose) override {
    call_plugin(
        speaker_, "began a gather",
        [&] { inner_->start(std::move(shard), std::move(whole), ranks, purpose); }, Stage::run);
  }
  void finish() override {
    call_plugin(
        speaker_, "ended a gather", [&] { inner_->finish(); }, Stage::run);
  }

 private:
  const std::unique_ptr<BucketGather> inner_;
  const PluginPlace speaker_;
};

// Wraps a plugin's hook: whatever it throws names the plugin.
class GuardedHook final : public ReductionHook {
 public:
  GuardedHook(std::shared_ptr<const ReductionHook> inner, PluginPlace speaker)
      : inner_(std::move(inner)), speaker_(std::move(speaker)) {}

  std::string name() const override {
    return call_plugin(speaker_, "named a reduction", [&] { return inner_->name(); });
  }
  std::string identity() const override {
    return call_plugin(speaker_, "named a reduction", [&] { return inner_->identity(); });
  }
  bool exact(const BucketShape& bucket) const override {
    return call_plugin(speaker_, "described a reduction", [&] { return inner_->exact(bucket); });
  }
  ReductionCost cost(const BucketShape& bucket) const override {
    return call_plugin(speaker_, "priced a reduction",
                       [&] { return checked(inner_->cost(bucket), bucket); });
  }
  ReductionCost gather_cost(const BucketShape& bucket) const override {
    return call_plugin(speaker_, "priced a gather", [&] {
      ReductionCost cost = checked(inner_->gather_cost(bucket), bucket);
      cost.kept = 0;
      return cost;
    });
  }
  bool gathers() const override {
    return call_plugin(speaker_, "described a gather", [&] { return inner_->gathers(); });
  }
  std::unique_ptr<BucketReduction> make(const BucketShape& bucket,
                                        at::TensorOptions options) const override {
    auto made = call_plugin(
        speaker_, "made a reduction", [&] { return inner_->make(bucket, options); }, Stage::run);
    if (made == nullptr) {
      throw Error(attributed(speaker_,
                             {Stage::run, "plugin.fault", "",
                              "its hook made no reduction for " + bucket.name, "mend the plugin"}));
    }
    return std::make_unique<GuardedReduction>(std::move(made), speaker_);
  }
  std::unique_ptr<BucketGather> make_gather(const BucketShape& bucket,
                                            at::TensorOptions options) const override {
    auto made = call_plugin(
        speaker_, "made a gather", [&] { return inner_->make_gather(bucket, options); },
        Stage::run);
    if (made == nullptr) {
      throw Error(
          attributed(speaker_, {Stage::run, "plugin.fault", "",
                                "its hook made no gather for " + bucket.name, "mend the plugin"}));
    }
    return std::make_unique<GuardedGather>(std::move(made), speaker_);
  }

 private:
  ReductionCost checked(const ReductionCost& cost, const BucketShape& bucket) const {
    const std::string whose = fmt::format("{} for {}", inner_->name(), bucket.name);
    check_amounts(whose, {{"kept", cost.kept}, {"held", cost.held}});
    for (const auto* phase : {&cost.start, &cost.finish}) {
      check_amounts(
          whose,
          {{"workspace", phase->workspace}, {"touched", phase->touched}, {"flops", phase->flops}});
      for (const auto& call : phase->calls)
        check_amounts(whose + ", " + name_of(call.op), {{"bytes", call.bytes}});
    }
    return cost;
  }

  const std::shared_ptr<const ReductionHook> inner_;
  const PluginPlace speaker_;
};

void guard_hooks(Program& program, const PluginPlace& speaker) {
  for (Bucket& bucket : program.buckets) {
    for (Hook* hook : {&bucket.hook, &bucket.gather_hook}) {
      if (*hook == nullptr || dynamic_cast<const GuardedHook*>(hook->get()) != nullptr) continue;
      *hook = std::make_shared<GuardedHook>(*hook, speaker);
    }
  }
}

}  // namespace

Draft::Draft(const Graph& graph, const Mesh& mesh) : graph_(graph), mesh_(mesh) {}
Draft::~Draft() = default;

void Draft::refuse(std::string code, std::string option, std::string message, std::string hint) {
  if (option.empty()) option = option_;
  problems_.add(attributed({strategy_, place_}, {Stage::plan, std::move(code), std::move(option),
                                                 std::move(message), std::move(hint)}));
}

bool Draft::there(const std::string& what, Dim dim, const std::string& axis) {
  const bool known = has_dim(graph_, dim);
  if (!known) {
    refuse("rule.dim", "",
           fmt::format("{} names {}, and the model has no such dim", what, name_of(dim)),
           dim == Dim("layers") ? "the layers are no dim of a tensor: Draft::pipeline parts them"
                                : dims_there_are(graph_, dim));
  }
  if (axis.empty() || !mesh_.has(axis)) {
    refuse("axis.unknown", "",
           fmt::format("{} names the axis \"{}\", and the mesh has no such axis", what,
                       readable(axis)),
           axes_there_are(mesh_, axis));
    return false;
  }
  return known;
}

void Draft::shard(Dim dim, const std::string& axis) {
  shard_where(dim, axis, {});
}

void Draft::shard_in(Dim dim, const std::string& axis, std::function<bool(const Op&)> where,
                     std::vector<int> atoms) {
  const std::string what = rule_text(dim, axis);
  if (!there(what, dim, axis)) return;
  const std::vector<int>& own = mesh_.axis(axis).atoms;
  for (int atom : atoms) {
    if (std::find(own.begin(), own.end(), atom) != own.end()) continue;
    refuse("axis.atom", "",
           fmt::format("{} is for atom {}, which the axis does not have", what, atom),
           fmt::format("the atoms of {} are {}", axis, fmt::join(own, ", ")));
    return;
  }
  add_rule({strategy_, dim, axis, guarded({strategy_, place_}, std::move(where)), true,
            std::move(atoms), place_, option_});
}

void Draft::shard_where(Dim dim, const std::string& axis, std::function<bool(const Op&)> where) {
  if (!there(rule_text(dim, axis), dim, axis)) return;
  add_rule({strategy_,
            dim,
            axis,
            guarded({strategy_, place_}, std::move(where)),
            false,
            {},
            place_,
            option_});
}

// A dim that is like the rule's (DimInfo::like) and does not divide evenly stays whole: every rank
// computes all of it.
void Draft::add_rule(Rule rule) {
  for (const auto& [other, info] : graph_.dims()) {
    if (info.like != rule.dim || other == rule.dim) continue;
    const int ways = mesh_.ways(rule.atoms(mesh_));
    if (info.even && info.size % ways != 0) {
      note(fmt::format("{}: {} {} does not divide by {}: every rank computes all of it", strategy_,
                       other.name(), info.size, ways));
      continue;
    }
    Rule also = rule;
    also.dim = other;
    rules_.push_back(std::move(also));
  }
  rules_.push_back(std::move(rule));
}

void Draft::store(Dim dim, const std::string& axis, std::function<bool(const Value&)> where) {
  if (!there("stored " + rule_text(dim, axis), dim, axis)) return;
  storage_.push_back(
      {strategy_, dim, axis, guarded({strategy_, place_}, std::move(where)), place_, option_});
}

void Draft::rotate(Dim dim, const std::string& axis, std::function<bool(const Op&)> where) {
  if (!there(fmt::format("rotating {} over {}", name_of(dim), readable(axis)), dim, axis)) return;
  rotations_.push_back(
      {strategy_, dim, axis, guarded({strategy_, place_}, std::move(where)), place_});
}

void Draft::slice(Dim dim, int slices, std::function<bool(const Op&)> where, bool recompute) {
  if (!has_dim(graph_, dim)) {
    refuse("rule.dim", "", fmt::format("slices of {}, and the model has no such dim", name_of(dim)),
           dims_there_are(graph_, dim));
    return;
  }
  static const Dim batch("batch");
  if (slices < 1 || dim == batch) {
    refuse("slices.dim", "",
           dim == batch ? std::string("slices of batch: a microbatch is one already")
                        : fmt::format("{} slices of {}", slices, dim.name()),
           dim == batch ? "set microbatch" : "1 slice, or more");
    return;
  }
  if (slices == 1) return;
  slices_.push_back({strategy_, dim, slices, guarded({strategy_, place_}, std::move(where)),
                     recompute, place_, option_});
}

void Draft::add_pass(Pass pass) {
  const PluginPlace speaker{strategy_, place_};
  if (!pass.run && !pass.rearrange && !pass.finish) {
    refuse("pass.empty", "", fmt::format("the pass \"{}\" has nothing to run", readable(pass.name)),
           "give it a function of the program");
    return;
  }
  if (!pass.axis.empty() && !mesh_.has(pass.axis)) {
    refuse("axis.unknown", "",
           fmt::format("the pass \"{}\" names the axis \"{}\", and the mesh has no such axis",
                       readable(pass.name), readable(pass.axis)),
           axes_there_are(mesh_, pass.axis));
    return;
  }
  const auto guard = [&](std::function<void(Program&)>& edit, const char* did) {
    if (!edit) return;
    edit = [speaker, did, run = std::move(edit)](Program& program) {
      call_plugin(speaker, did, [&] { run(program); });
      guard_hooks(program, speaker);
    };
  };
  guard(pass.run, "edited a program");
  guard(pass.rearrange, "rearranged a program");
  guard(pass.finish, "finished a program");
  pass.strategy = strategy_;
  pass.place = place_;
  passes_.push_back(std::move(pass));
}

void Draft::pipeline(Pipeline pipeline) {
  if (pipeline_) {
    refuse("pipeline.twice", "",
           fmt::format("{} and {} both divide the layers into stages", pipeline_by_, strategy_),
           "leave one of them out");
    return;
  }
  const PluginPlace speaker{strategy_, place_};
  const std::size_t before = problems_.list().size();
  const bool axis = pipeline.axis.empty() || mesh_.has(pipeline.axis);
  if (!axis) {
    refuse("axis.unknown", "",
           fmt::format("the pipeline wants its stages on the axis \"{}\", and the mesh has no "
                       "such axis",
                       readable(pipeline.axis)),
           axes_there_are(mesh_, pipeline.axis));
  }
  if (!pipeline.schedule) {
    refuse("pipeline.schedule", "", "the pipeline has no schedule",
           "give Pipeline::schedule a function of the request");
  }
  const int stages = !axis || pipeline.axis.empty() ? 1 : mesh_.axis(pipeline.axis).ways;
  const auto parts = static_cast<int>(pipeline.layers.size());
  if (std::any_of(pipeline.layers.begin(), pipeline.layers.end(), [](int n) { return n < 0; }) ||
      std::accumulate(pipeline.layers.begin(), pipeline.layers.end(), std::int64_t{0}) !=
          (parts > 0 ? graph_.layers : 0)) {
    refuse("pipeline.layers", "",
           fmt::format("the pipeline's parts have {} layers; the model has {}",
                       fmt::join(pipeline.layers, " + "), graph_.layers),
           fmt::format("make them add up to {}", graph_.layers));
  } else if (axis && (parts < stages && stages > 1)) {
    refuse(
        "pipeline.stages", "",
        fmt::format("the pipeline divides the layers into {} parts, for {} stages", parts, stages),
        "give each stage at least one part");
  }
  const auto& at = pipeline.stage_of;
  if (axis && !at.empty() &&
      (at.size() != static_cast<std::size_t>(std::max(parts, 1)) ||
       std::any_of(at.begin(), at.end(), [&](int s) { return s < 0 || s >= stages; }))) {
    refuse("pipeline.stages", "",
           fmt::format("the pipeline places its {} parts on the stages {}; there are {} stages",
                       std::max(parts, 1), fmt::join(at, ", "), stages),
           "name for each part a stage, counted from 0");
  }
  if (!std::isfinite(pipeline.memory_limit) || pipeline.memory_limit < 0) {
    refuse("pipeline.memory", "",
           fmt::format("the pipeline's memory limit is {} bytes", pipeline.memory_limit),
           "0 means no limit");
  }
  if (problems_.list().size() > before) return;
  pipeline.schedule = [speaker, make = std::move(pipeline.schedule)](const ScheduleRequest& r) {
    return call_plugin(speaker, "made the schedule", [&] { return make(r); });
  };
  pipeline_by_ = strategy_;
  pipeline.strategy = strategy_;
  pipeline.place = place_;
  pipeline_ = std::move(pipeline);
}

void Draft::permute_tokens(Dim dim, std::vector<Range> order) {
  if (graph_.dims().count(dim) == 0) {
    refuse("rule.dim", "",
           fmt::format("an order is given for {}, and the model has no such dim", name_of(dim)),
           dims_there_are(graph_, dim));
    return;
  }
  if (!covers(order, graph_.size(dim))) {
    refuse("order.ranges", "",
           fmt::format("the order of {} is not made of ranges of its {} elements, each once",
                       name_of(dim), graph_.size(dim)),
           "list ranges that cover the dim and do not overlap");
    return;
  }
  if (!order_.emplace(dim, std::move(order)).second) {
    refuse("order.twice", "",
           fmt::format("the {} already has an order from another strategy", dim.name()),
           "leave one of them out");
  }
}

void Draft::part_documents(int ways) {
  if (document_parts_ > 1) {
    refuse("order.twice", "", "documents are already parted by another strategy",
           "leave one of them out");
    return;
  }
  try {
    (void)graph_.with_parted_documents(ways);
    document_parts_ = ways;
  } catch (const Error& error) {
    problems_.add(error);
  }
}

bool Draft::divides(const std::string& axis, Dim dim) const {
  const auto info = graph_.dims().find(dim);
  return info != graph_.dims().end() && info->second.size % mesh_.axis(axis).ways == 0;
}

}  // namespace mw
