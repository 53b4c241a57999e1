// Small experiments on synthetic tokens, composed of the plugins that ship, loaded as users' are.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check/verify.h"
#include "meshwright/engine/text.h"
#include "prove/prove.h"
#include "script/experiment.h"
#include "script/read_loss_scale.h"
#include "script/strategy_choice.h"
#include "support/joined.h"
#include "support/nccl_rule.h"
#include "support/registered.h"

namespace mw::test {

// A plugin's strategy; throws Error as a script would be refused.
// `call`: does what its functions do.
inline StrategyChoice strategy(
    const std::string& plugin, Json options,
    std::function<Json(std::int64_t, const std::vector<Json>&)> call = nullptr) {
  options["plugin"] = plugin;
  Problems problems;
  const auto reach = std::make_shared<ScriptReach>(ScriptReach{std::move(call), {}, &registry()});
  auto made = make_choice(options, "plan", registry(), reach, problems);
  problems.throw_if_any();
  return std::move(*made);
}

inline StrategyChoice dp(int ways, std::int64_t bucket = 1 << 16, bool overlap = true) {
  return strategy("dp", {{"ways", ways}, {"bucket", bucket}, {"overlap", overlap}});
}
inline StrategyChoice tp(int ways, bool overlap = false) {
  return strategy("tp", {{"ways", ways}, {"overlap", overlap}});
}
// On tp's ranks.
inline StrategyChoice sp() {
  return strategy("sp", Json::object());
}
// On ranks of its own, each of which has one part of the sequence.
inline StrategyChoice sp(int ways, const std::string& form) {
  return strategy("sp", {{"ways", ways}, {"form", form}, {"balance", "none"}});
}
inline StrategyChoice ep(int ways) {
  return strategy("ep", {{"ways", ways}});
}
// A dim in so many slices, one after the other; `ops`: only these, if any.
inline StrategyChoice coshard(const std::string& dim, int slices, std::vector<std::string> ops = {},
                              bool recompute = true) {
  Json options = {{"dim", dim}, {"slices", slices}, {"recompute", recompute}};
  if (!ops.empty()) options["ops"] = ops;
  return strategy("coshard", std::move(options));
}
// `layers` of each virtual stage.
inline StrategyChoice pp(int ways, const std::string& schedule, const std::vector<int>& layers,
                         std::int64_t memory = 0) {
  Json options = {{"ways", ways},
                  {"schedule", schedule},
                  {"chunks", layers.size() / static_cast<std::size_t>(ways)},
                  {"layout", layers}};
  if (memory > 0) options["memory"] = memory;
  return strategy("pp", std::move(options));
}
inline StrategyChoice zero(int ways, int stage, int replicas = 1, int prefetch = 1,
                           bool keep = false, std::int64_t bucket = 1 << 12,
                           const std::string& offload = "none") {
  Json options = {{"ways", ways},
                  {"stage", stage},
                  {"replicas", replicas},
                  {"keep", keep && stage == 3},
                  {"offload", offload}};
  // Options that mean something together, of a product of them.
  if (stage == 3 && !keep) options["prefetch"] = prefetch;
  if (stage < 3) options["bucket"] = bucket;
  return strategy("zero", std::move(options));
}
// Keeps optimizer state in host memory and updates there, all at the step's end where it does not
// overlap.
inline StrategyChoice zero_on_host(int ways, int stage, const std::string& offload, bool overlaps) {
  Json options = {
      {"ways", ways}, {"stage", stage}, {"offload", offload}, {"overlap_update", overlaps}};
  if (stage < 3) options["bucket"] = 1 << 12;
  return strategy("zero", std::move(options));
}
// Updates on the device what it keeps in host memory.
inline StrategyChoice zero_on_device(int ways, int stage, const std::string& offload) {
  Json options = {{"ways", ways}, {"stage", stage}, {"offload", offload}, {"update", "device"}};
  if (stage < 3) options["bucket"] = 1 << 12;
  return strategy("zero", std::move(options));
}

// State in shards over the ranks that split the sequence too.
inline StrategyChoice zero_over_sequence(int ways, int stage, int replicas = 1) {
  Json options = {{"ways", ways}, {"stage", stage}, {"replicas", replicas}, {"sequence", true}};
  if (stage < 3) options["bucket"] = 1 << 12;
  return strategy("zero", std::move(options));
}

// Gradients in shards, reduced when a stage turns to another chunk of the model.
inline StrategyChoice zero_by_chunk(int ways, int stage, int replicas = 1) {
  Json options = {{"ways", ways}, {"stage", stage}, {"replicas", replicas}, {"reduce", "chunk"}};
  if (stage < 3) options["bucket"] = 1 << 12;
  return strategy("zero", std::move(options));
}

// One stage: all forwards, then all dgrads, then all wgrads.
// A wgrad reads everything as late as can be.
inline StrategyChoice delayed_wgrads() {
  const auto order = [](std::int64_t, const std::vector<Json>& request) {
    std::string actions;
    for (const char* work : {"F", "I", "W"}) {
      for (int m = 0; m < request.at(0).at("microbatches").get<int>(); ++m)
        actions += fmt::format("0{}{} ", work, m);
    }
    return Json::array({actions});
  };
  return strategy("pp", {{"ways", 1}, {"schedule", {{function_key, 1}}}}, order);
}

// Two stages and two microbatches, which the second stage takes in another order than that in which
// the first one sends them.
inline StrategyChoice pp_against_the_order() {
  const auto order = [](std::int64_t, const std::vector<Json>&) {
    return Json::array({"0F0 0F1 0B1 0B0", "1F1 1B1 1F0 1B0"});
  };
  return strategy("pp", {{"ways", 2}, {"schedule", {{function_key, 1}}}}, order);
}

// A mix and what it is called.
struct Mix {
  std::string name;
  std::vector<StrategyChoice> plan;
};

// What no plugin that ships does: axes, and what is done with a draft.
using Edit = std::function<void(Draft&)>;
inline StrategyChoice does(const std::string& name, std::vector<AxisRequest> axes, Edit edit) {
  class Does : public Strategy {
   public:
    Does(std::vector<AxisRequest> axes, Edit edit)
        : axes_(std::move(axes)), edit_(std::move(edit)) {}
    std::vector<AxisRequest> axes() const override { return axes_; }
    void edit(Draft& draft) const override { edit_(draft); }

   private:
    std::vector<AxisRequest> axes_;
    Edit edit_;
  };
  return {name, "plan", Json::object(), std::make_shared<Does>(std::move(axes), std::move(edit))};
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
  bool may_leave_out = true;  // a step, as it is not finite
  int threads = 0;
  Json loss_scale;  // null: none
  std::string optimizer = "adamw";
  Json optimizer_options = {{"lr", 1e-3}, {"clip", 0.5}};

  // The same sizes as a GPT, whose embedding is tied.
  void make_gpt() {
    model = "gpt";
    options.erase("kv_heads");
    options.erase("ffn");
    options["tied"] = true;
  }
  // with four experts, of which a token takes two.
  void make_moe() {
    model = "moe";
    options["experts"] = 4;
    options["top_k"] = 2;
  }
};

inline Experiment experiment(const Setup& setup) {
  Problems problems;
  Experiment e;
  e.optimizer = made_at<Optimizer>("optimizer", setup.optimizer, setup.optimizer_options, problems);
  PlanRequest request;
  request.model = made_at<Model>("model", setup.model, setup.options, problems);
  request.model_options =
      registry().find(Kind::model, setup.model).options().read(setup.options, "model", problems);
  problems.throw_if_any();
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
  request.may_leave_out = setup.may_leave_out;
  request.threads = e.threads = setup.threads;
  if (!setup.loss_scale.is_null()) {
    Json given = setup.loss_scale;
    e.loss_scale = read_loss_scale(given, nullptr, problems);
  }
  DataContext context;
  context.sequence = setup.sequence;
  context.vocab = request.model->vocab();
  e.data = made_at<TokenSource>("data", "synthetic", Json::object(), problems, context);
  request.optimizer = e.optimizer;
  e.plan = make_plan(request, problems);
  e.schedule = [](std::int64_t) { return 1e-3; };
  e.steps = 3;
  e.timeout = 120;
  problems.throw_if_any();
  return e;
}

// Loss, gradients and parameters are one rank's, and the programs are proved to make them, without
// anything that NCCL could not do. Where processes run the test together, the ranks are shared out
// to them; a plan that they cannot share evenly is left out.
inline void must_equal_one_rank(const Setup& setup) {
  Experiment e = experiment(setup);
  e.processes = joined();
  if (e.processes != nullptr && e.plan->ranks() % e.processes->count() != 0) return;
  const NcclRule rule;
  const Proof proof = prove(e.plan->programs);
  INFO(proof.text());
  CHECK(proof.proved());
  const VerifyOutcome outcome = verify(e);
  INFO(describe(outcome, e.plan->mix()));
  CHECK(outcome.equal);
  CHECK(std::max({outcome.loss, outcome.gradients, outcome.parameters}) <= 1e-10);
}

}  // namespace mw::test
