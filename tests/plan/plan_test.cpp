// What a plan refuses: every problem at once, with the numbers and the nearest valid choice.
#include <catch2/catch.hpp>

#include "support/problems.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

std::string refusal(const Setup& setup) {
  try {
    experiment(setup);
  } catch (const Error& error) {
    CHECK(error.exit_code() == 3);
    return codes(error.problems());
  }
  return "accepted";
}

}  // namespace

TEST_CASE("Heads that do not divide") {
  Setup setup;
  setup.options["heads"] = 4;
  setup.options["kv_heads"] = 4;
  setup.plan = {tp(3)};
  CHECK(refusal(setup) == "axis.cannot-split plan.ways");
}

TEST_CASE("A batch that does not divide") {
  Setup setup;
  setup.batch = 10;
  setup.plan = {dp(4)};
  CHECK(refusal(setup) == "batch.uneven batch");
  setup.batch = 12;
  setup.microbatch = 4;
  CHECK(refusal(setup) == "microbatch.too-large microbatch");
}

TEST_CASE("Two problems are told together") {
  Setup setup;
  setup.options["heads"] = 4;
  setup.options["kv_heads"] = 4;
  setup.batch = 10;
  setup.plan = {dp(4), tp(3)};
  CHECK(refusal(setup) == "batch.uneven batch; axis.cannot-split plan.ways");
}

TEST_CASE("An axis that is asked for twice") {
  Setup setup;
  setup.plan = {dp(2), dp(2)};
  CHECK(refusal(setup) == "axis.twice plan");
}

TEST_CASE("More ranks than a dim has parts") {
  Setup setup;
  setup.options["vocab"] = 3;
  setup.plan = {tp(4)};
  CHECK(refusal(setup) == "axis.cannot-split plan.ways");
}

TEST_CASE("A plan's hash tells plans apart and is the same for the same") {
  Setup setup;
  setup.plan = {dp(2)};
  const std::string hash = experiment(setup).plan->hash();
  CHECK(hash.size() == 16);
  CHECK(experiment(setup).plan->hash() == hash);
  setup.batch = 24;
  CHECK(experiment(setup).plan->hash() != hash);
  setup.batch = 12;
  setup.plan = {tp(2)};
  CHECK(experiment(setup).plan->hash() != hash);
}

TEST_CASE("One rank computes the same microbatches") {
  Setup setup;
  setup.batch = 24;
  setup.microbatch = 4;
  setup.plan = {dp(3), tp(2)};
  const auto plan = experiment(setup).plan;
  const auto one = one_rank_plan(*plan, true);
  CHECK(one->ranks() == 1);
  CHECK(one->microbatches == plan->microbatches);
  CHECK(one->graph->size("batch") == plan->graph->size("batch"));
  CHECK(one_rank_plan(*plan, false)->microbatches == 1);
}

TEST_CASE("A plan of fp32 has in float64 the programs that are made in float64") {
  Setup setup;
  setup.precision = Precision::fp32;
  setup.recompute.kind = GENERATE(RecomputePolicy::Kind::none, RecomputePolicy::Kind::full);
  setup.microbatch = 1;
  setup.optimizer = GENERATE("adamw", "muon");
  const std::int64_t all = 1 << 20;  // bytes that no bucket has in either precision
  const std::vector<std::vector<StrategyChoice>> plans = {{dp(2, all)},
                                                          {tp(2, true), sp()},
                                                          {zero(2, 2, 1, 1, false, all), tp(2)},
                                                          {pp(2, "zb-h1", {1, 1}), zero(3, 3)}};
  for (const auto& choices : plans) {
    setup.plan = choices;
    const Experiment e = experiment(setup);
    INFO(e.plan->mix());
    PlanRequest request = e.plan->request;
    request.precision = Precision::fp64;
    request.schedule = e.plan->schedule;
    Problems problems;
    const auto made = make_plan(request, problems);
    REQUIRE(problems.empty());
    CHECK(in_double(*e.plan)->hash() == made->hash());
    CHECK(made->hash() != e.plan->hash());
  }
}

TEST_CASE("A plan in float64 has the buckets of the plan, though their gradients have more bytes") {
  Setup setup;
  setup.precision = GENERATE(Precision::fp32, Precision::fp64);
  setup.plan = {dp(2, 1 << 13)};
  const Experiment e = experiment(setup);
  const auto parameters = [](const Plan& plan) {
    std::vector<std::vector<int>> buckets;
    for (const Bucket& bucket : plan.programs.front().buckets) buckets.push_back(bucket.parameters);
    return buckets;
  };
  const auto wide = in_double(*e.plan);
  CHECK(wide->programs.front().gradient_dtype == Dtype::fp64);
  CHECK(parameters(*wide) == parameters(*e.plan));
  setup.precision = setup.precision == Precision::fp32 ? Precision::fp64 : Precision::fp32;
  CHECK(parameters(*experiment(setup).plan) != parameters(*e.plan));
}
