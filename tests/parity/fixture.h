// Small experiments for the parity tests: a model on synthetic tokens, cut as a test asks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/experiment.h"
#include "engine/verify.h"

namespace mw::test {

// A strategy that is rules alone: an axis, and the dims that live on it.
class Rules : public Strategy {
 public:
  Rules(std::string axis, int ways, std::vector<Dim> dims, std::vector<Pass> passes = {})
      : axis_(std::move(axis)), ways_(ways), dims_(std::move(dims)), passes_(std::move(passes)) {}
  std::vector<AxisRequest> axes() const override { return {{axis_, ways_, {}}}; }
  void edit(Draft& draft) const override {
    for (Dim dim : dims_) {
      if (dim != Dim("kv_heads") || draft.divides(axis_, dim)) draft.shard(dim, axis_);
    }
    for (const Pass& pass : passes_) draft.add_pass(pass);
  }

 private:
  std::string axis_;
  int ways_;
  std::vector<Dim> dims_;
  std::vector<Pass> passes_;
};

inline StrategyChoice choice(const std::string& name, std::shared_ptr<const Strategy> strategy) {
  return {name, "plan", Json::object(), std::move(strategy)};
}
inline StrategyChoice dp(int ways, std::int64_t bucket = 1 << 16, bool overlap = true) {
  std::vector<Pass> passes{bucket_gradients(bucket)};
  if (overlap && ways > 1) passes.push_back(overlap_gradient_reduction());
  return choice("dp", std::make_shared<Rules>("dp", ways, Dims{"batch"}, passes));
}
inline StrategyChoice tp(int ways) {
  return choice("tp",
                std::make_shared<Rules>("tp", ways, Dims{"heads", "kv_heads", "ffn", "vocab"}));
}

// One stage: all forwards, then all dgrads, then all wgrads. A wgrad reads everything as late as can be.
inline Schedule delayed_wgrads(const ScheduleRequest& request) {
  Schedule schedule;
  schedule.name = "delayed";
  schedule.microbatches = request.microbatches;
  schedule.stage_of = {0};
  schedule.order.resize(1);
  for (const Work work : {Work::forward, Work::dgrad, Work::wgrad}) {
    for (int m = 0; m < request.microbatches; ++m) schedule.order[0].push_back({0, work, m});
  }
  return schedule;
}

// `layers` of each virtual stage.
class Stages : public Strategy {
 public:
  Stages(int ways, const std::string& schedule, std::vector<int> layers, double memory = 0)
      : ways_(ways),
        scheduler_(find_scheduler(schedule)),
        layers_(std::move(layers)),
        memory_(memory) {}
  std::vector<AxisRequest> axes() const override { return {{"pp", ways_, {}}}; }
  void edit(Draft& draft) const override {
    const int chunks = static_cast<int>(layers_.size()) / ways_;
    draft.pipeline({"pp",
                    layers_,
                    scheduler_->placement(ways_, chunks),
                    [this](const ScheduleRequest& r) { return scheduler_->make(r); },
                    {},
                    memory_,
                    true});
  }

 private:
  int ways_;
  const Scheduler* scheduler_;
  std::vector<int> layers_;
  double memory_;
};
inline StrategyChoice pp(int ways, const std::string& schedule, std::vector<int> layers) {
  return choice("pp", std::make_shared<Stages>(ways, schedule, std::move(layers)));
}

// ZeRO `stage` over an axis of its own; parts inside ways / replicas ranks.
class Parts : public Strategy {
 public:
  Parts(int ways, int stage, int replicas, int prefetch, bool keeps, std::int64_t bucket,
        Offload offload)
      : ways_(ways), replicas_(replicas), bucket_(bucket), stage_(stage) {
    storage_.axis = replicas > 1 ? "zero_parts" : "zero";
    storage_.parted = static_cast<Parted>(stage);
    storage_.prefetch = prefetch;
    storage_.keeps = keeps;
    storage_.offload = offload;
  }
  std::vector<AxisRequest> axes() const override {
    std::vector<AxisRequest> axes{{"zero", ways_, {}}};
    if (replicas_ > 1) axes.push_back({"zero_parts", ways_ / replicas_, {"zero"}});
    return axes;
  }
  void edit(Draft& draft) const override {
    draft.shard("batch", "zero");
    if (stage_ < 3) draft.add_pass(bucket_gradients(bucket_));
    draft.add_pass(overlap_gradient_reduction());
    draft.add_pass(part_storage(storage_));
  }

 private:
  int ways_, replicas_;
  std::int64_t bucket_;
  int stage_;
  PartedStorage storage_;
};
inline StrategyChoice zero(int ways, int stage, int replicas = 1, int prefetch = 1,
                           bool keeps = false, std::int64_t bucket = 1 << 12,
                           Offload offload = Offload::nothing) {
  return choice("zero",
                std::make_shared<Parts>(ways, stage, replicas, prefetch, keeps, bucket, offload));
}

struct Setup {
  std::string model = "llama";
  Json options = {{"layers", 2},   {"hidden", 48}, {"heads", 12},
                  {"kv_heads", 4}, {"ffn", 40},    {"vocab", 50}};
  std::vector<StrategyChoice> plan;
  std::int64_t batch = 12, sequence = 8, microbatch = 0;
  std::vector<std::int64_t> sizes;  // of each microbatch, instead
  Precision precision = Precision::fp64;
  bool fp32_gradients = false;
  RecomputePolicy recompute;
  OffloadPolicy offload;
  bool fp32_sums = false;
  int threads = 0;
  Json loss_scale;  // null: none
  std::string optimizer = "adamw";
  Json optimizer_options = {{"lr", 1e-3}, {"clip", 0.5}};
};

inline Experiment experiment(const Setup& setup) {
  Problems problems;
  Experiment e;
  const OptimizerKind& kind = *find_optimizer_kind(setup.optimizer);
  e.optimizer = kind.make(kind.options().read(setup.optimizer_options, "optimizer", problems),
                          "optimizer", problems);
  PlanRequest request;
  request.model = find_model_kind(setup.model);
  request.model_options = request.model->options().read(setup.options, "model", problems);
  request.strategies = setup.plan;
  request.batch = setup.batch;
  request.sequence = setup.sequence;
  request.microbatch = setup.microbatch;
  request.sizes = setup.sizes;
  request.precision = setup.precision;
  request.fp32_gradients = setup.fp32_gradients;
  request.recompute = setup.recompute;
  request.offload = setup.offload;
  request.fp32_sums = setup.fp32_sums;
  request.threads = e.threads = setup.threads;
  if (!setup.loss_scale.is_null())
    e.loss_scale = read_loss_scale(setup.loss_scale, nullptr, problems);
  DataContext context;
  context.sequence = setup.sequence;
  context.vocab = request.model_options.integer("vocab");
  const DataKind* data = find_data_kind("synthetic");
  e.data =
      data->open(data->options().read(Json::object(), "data", problems), "data", context, problems);
  if (e.optimizer->matrices()) request.ns_steps = e.optimizer->matrices()->ns_steps();
  e.plan = make_plan(request, problems);
  e.schedule = [](std::int64_t) { return 1e-3; };
  e.steps = 3;
  e.timeout = 120;
  problems.throw_if_any();
  return e;
}

}  // namespace mw::test
