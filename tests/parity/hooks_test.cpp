// How dp's gradients are summed: in every microbatch, or through hooks.
#include <catch2/catch.hpp>

#include "meshwright/passes.h"
#include "meshwright/strategy.h"
#include "support/hooks.h"
#include "support/problems.h"
#include "support/setup.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;

namespace {

StrategyChoice hooked(int ways, const std::string& hook, std::int64_t rank = 2) {
  Json with = {{"kind", hook}};
  if (hook == "powersgd") with["rank"] = rank;
  return strategy("dp", {{"ways", ways}, {"bucket", 1 << 16}, {"hook", with}});
}

StrategyChoice each(int ways, bool overlap) {
  return strategy("dp",
                  {{"ways", ways}, {"bucket", 1 << 12}, {"overlap", overlap}, {"reduce", "each"}});
}

Setup usual(bool gpt) {
  Setup setup;
  if (gpt) setup.make_gpt();
  return setup;
}

// The loss of the first step, and the mean of the last ten.
std::pair<double, double> losses(const Setup& setup, std::int64_t steps) {
  Experiment e = experiment(setup);
  e.steps = steps;
  e.schedule = [](std::int64_t) { return 5e-3; };
  double first = 0, last = 0;
  train(e, nullptr, [&](const StepReport& report) {
    if (report.step == 0) first = report.loss;
    if (report.step >= steps - 10) last += report.loss / 10;
  });
  return {first, last};
}

}  // namespace

TEST_CASE("A reduction in every microbatch equals one rank", "[matrix]") {
  const bool is_gpt = GENERATE(false, true), overlap = GENERATE(false, true);
  const int ways = GENERATE(2, 3), microbatches = GENERATE(1, 2, 4);
  const std::string beside = GENERATE(as<std::string>{}, "", "tp", "1f1b", "zb-h1");
  Setup setup = usual(is_gpt);
  setup.batch = ways * microbatches;
  setup.microbatch = 1;
  setup.plan = {each(ways, overlap)};
  if (beside == "tp") {
    setup.plan.push_back(tp(2));
  } else if (!beside.empty()) {
    setup.plan.insert(setup.plan.begin(), pp(2, beside, {1, 1}));
  }
  DYNAMIC_SECTION((is_gpt ? "gpt" : "llama") << " dp " << ways << " microbatches " << microbatches
                                             << " " << beside << (overlap ? " overlapped" : "")) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("An exact hook in every microbatch equals one rank") {
  const int ways = GENERATE(2, 3), microbatches = GENERATE(1, 3);
  Setup setup;
  setup.batch = ways * microbatches;
  setup.microbatch = 1;
  setup.plan = {does("each_hooked", {{"dp", ways, Role::data}}, [](Draft& draft) {
    draft.shard("batch", "dp");
    draft.add_pass(bucket_gradients(1 << 12));
    draft.add_pass(reduce_each_microbatch("dp"));
    draft.add_pass(hook_reductions(
        "dp", [](const BucketShape&) { return std::make_shared<const PlainSum>(); }));
  })};
  must_equal_one_rank(setup);
}

TEST_CASE("An exact hook beside sharded optimizer state equals one rank") {
  const int ways = GENERATE(2, 4), replicas = ways / 2;
  Setup setup;
  setup.batch = 2 * ways;
  setup.microbatch = 1;
  setup.plan = {does("hooked", {{"dp", 2, Role::data}},
                     [](Draft& draft) {
                       draft.shard("batch", "dp");
                       draft.add_pass(bucket_gradients(1 << 12));
                       draft.add_pass(overlap_gradient_reduction());
                       draft.add_pass(hook_reductions("dp", [](const BucketShape&) {
                         return std::make_shared<const PlainSum>();
                       }));
                     }),
                strategy("zero", {{"ways", ways}, {"stage", 1}, {"replicas", replicas}})};
  must_equal_one_rank(setup);
}

TEST_CASE("A lossy hook is never called equal, and is named") {
  const bool is_gpt = GENERATE(false, true);
  const std::string what = GENERATE(as<std::string>{}, "bf16", "powersgd");
  const std::string beside = GENERATE(as<std::string>{}, "", "tp", "1f1b");
  Setup setup = usual(is_gpt);
  setup.microbatch = 3;
  setup.batch = 12;
  setup.plan = {hooked(2, what)};
  if (beside == "tp") setup.plan.push_back(tp(2));
  if (beside == "1f1b") setup.plan.insert(setup.plan.begin(), pp(2, beside, {1, 1}));
  DYNAMIC_SECTION((is_gpt ? "gpt " : "llama ") << what << " " << beside) {
    const Experiment e = experiment(setup);
    const VerifyOutcome outcome = verify(e);
    const std::string text = describe(outcome, e.plan->mix());
    INFO(text);
    CHECK_FALSE(outcome.equal);
    CHECK(outcome.lossy == std::vector<std::string>{what});
    CHECK(text.find("DIFFERS") != std::string::npos);
    CHECK(text.find("the hook " + what) != std::string::npos);
    // All that the hook does not touch is right.
    CHECK_FALSE(outcome.diverged);
    CHECK(outcome.gradients > 1e-4);
    if (what == "bf16") CHECK(outcome.gradients < 1e-2);
  }
}

TEST_CASE("PowerSGD that finds nothing to compress equals one rank") {
  Setup setup = usual(false);
  setup.plan = {hooked(2, "powersgd", 4096)};
  const Experiment e = experiment(setup);
  const VerifyOutcome outcome = verify(e);
  INFO(describe(outcome, e.plan->mix()));
  CHECK(outcome.equal);
  CHECK(outcome.lossy.empty());
}

TEST_CASE("Training through a hook converges near the plain loss") {
  Setup setup = usual(false);
  setup.precision = Precision::fp32;
  setup.microbatch = 3;
  const std::int64_t steps = 60;
  setup.plan = {dp(2)};
  const auto [first, last] = losses(setup, steps);
  REQUIRE(last < first - 1);
  const bool half = GENERATE(true, false);
  setup.plan = {hooked(2, half ? "bf16" : "powersgd", 4)};
  const auto [first_through, last_through] = losses(setup, steps);
  INFO((half ? "bf16: " : "powersgd: ")
       << first << " -> " << last << " plain, " << last_through << " through the hook");
  CHECK(first_through == Approx(first).epsilon(1e-6));
  // At most this part of what the plain run gains is lost.
  CHECK(last_through - last < (half ? 0.01 : 0.2) * (first - last));
}

TEST_CASE("Reductions in every microbatch are refused where gradients lie in parts") {
  const int stage = GENERATE(1, 2, 3);
  Setup setup = usual(false);
  setup.plan = {hooked(2, "bf16"), zero(2, stage)};
  CHECK(thrown([&] { experiment(setup); }) == "none");
  setup.plan = {each(2, true), zero(2, stage)};
  CHECK(thrown([&] { experiment(setup); }) == "hook.parts plan");
}
