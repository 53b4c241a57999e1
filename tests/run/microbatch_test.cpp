// Microbatch policies: what they read, which plan a step gets,
// what the numbers of a run are with them.
#include <catch2/catch.hpp>

#include "meshwright/engine/forecast.h"
#include "predict/fit.h"
#include "script/read_microbatch.h"
#include "support/problems.h"
#include "support/sample.h"
#include "support/setup.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;

namespace {

Json ramp(Json options) {
  options["kind"] = "ramp";
  return options;
}

std::shared_ptr<const ScriptReach> reach() {
  return std::make_shared<ScriptReach>(ScriptReach{nullptr, {}, &registry()});
}

// The batch of each step.
std::vector<std::int64_t> batches(Json given, std::int64_t batch, std::int64_t steps) {
  Problems problems;
  const MicrobatchPolicy policy = read_microbatch(given, {batch, 0}, reach(), problems);
  problems.throw_if_any();
  std::vector<std::int64_t> list;
  std::int64_t sample = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    list.push_back(policy.shape(step, sample).batch);
    sample += list.back();
  }
  return list;
}

std::string refusal(Json given, std::int64_t batch) {
  Problems problems;
  read_microbatch(given, {batch, 0}, reach(), problems);
  return codes(problems);
}

// The experiment with a policy for each step.
Experiment apart(const Setup& setup, const MicrobatchPolicy& policy, std::int64_t steps) {
  Experiment e = experiment(setup);
  Problems problems;
  e.steps = steps;
  PlanRequest request = e.plan->request;
  e.plan = make_step_plans(request, policy, steps, e.step_plans, problems);
  problems.throw_if_any();
  return e;
}

std::vector<double> losses(const Experiment& e) {
  std::vector<double> list;
  train(e, nullptr, [&](const StepReport& report) {
    list.push_back(report.loss);
    list.push_back(report.grad_norm);
  });
  return list;
}

}  // namespace

TEST_CASE("A ramp grows by equal increments to the batch") {
  CHECK(batches(ramp({{"from", 2}, {"steps", 6}}), 8, 8) ==
        std::vector<std::int64_t>{2, 2, 4, 4, 6, 6, 8, 8});
  CHECK(batches(ramp({{"from", 4}, {"by", 6}, {"steps", 2}}), 12, 4) ==
        std::vector<std::int64_t>{4, 10, 12, 12});
  // 8 sequences of the first size, then 8 of the next, as many samples for each.
  CHECK(batches(ramp({{"from", 2}, {"by", 2}, {"sequences", 16}}), 6, 8) ==
        std::vector<std::int64_t>{2, 2, 2, 2, 4, 4, 6, 6});
  CHECK(batches(ramp({{"from", 8}, {"steps", 5}}), 8, 2) == std::vector<std::int64_t>{8, 8});
}

TEST_CASE("What no policy is, is refused with what there is") {
  CHECK(refusal(ramp({{"from", 9}, {"steps", 5}}), 8) == "option.range microbatch.from");
  CHECK(refusal(ramp({{"from", 2}}), 8) == "option.conflict microbatch");
  CHECK(refusal(ramp({{"from", 2}, {"steps", 2}, {"sequences", 2}}), 8) ==
        "option.conflict microbatch");
  CHECK(refusal({{"kind", "fit"}}, 8) == "option.missing microbatch.memory");
  CHECK(refusal("2", 8) == "option.value microbatch");
  CHECK(refusal(0, 8) == "option.value microbatch");
  CHECK(refusal(Json::array({2, 0}), 8) == "option.value microbatch[2]");
  CHECK(refusal(Json::array({3, 3, 1}), 8) == "none");
}

TEST_CASE("Sizes that are not a rank's sequences are refused with the numbers") {
  Setup setup;
  setup.plan = {dp(2)};
  PlanRequest request = experiment(setup).plan->request;
  const auto refused = [&](std::int64_t microbatch, std::vector<std::int64_t> sizes) {
    request.microbatch = microbatch;
    request.sizes = std::move(sizes);
    Problems problems;
    CHECK(make_plan(request, problems) == nullptr);
    return codes(problems);
  };
  CHECK(refused(0, {3, 2}) == "microbatch.sum microbatch");
  CHECK(refused(7, {}) == "microbatch.too-large microbatch");
}

TEST_CASE("Microbatches of different sizes equal one rank with the whole batch", "[sampled]") {
  const int split = GENERATE(range(0, 3)), order = GENERATE(range(0, 4));
  const bool is_gpt = GENERATE(false, true);
  if (left_out({split, order, is_gpt}, 2)) return;
  const std::vector<std::int64_t> sizes =
      std::vector<std::vector<std::int64_t>>{{3, 3, 1}, {1, 4, 2}, {7}}[split];
  const std::string schedule = std::vector{"", "1f1b", "zb-h1", "zbv"}[order];
  Setup setup;
  setup.batch = 14;
  setup.sizes = sizes;
  setup.options["layers"] = 4;
  if (is_gpt) setup.make_gpt();
  setup.plan = {zero(2, 3), tp(2)};
  if (schedule == "zbv") setup.plan.insert(setup.plan.begin(), pp(2, schedule, {1, 1, 1, 1}));
  if (!schedule.empty() && schedule != "zbv")
    setup.plan.insert(setup.plan.begin(), pp(2, schedule, {2, 2}));
  DYNAMIC_SECTION((is_gpt ? "gpt " : "llama ")
                  << schedule << " " << sizes.size() << " from " << sizes.front()) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("Steps of different batches are those of one rank, whatever the mix") {
  MicrobatchPolicy policy;
  policy.shape = [](std::int64_t step, std::int64_t) {
    static const std::vector<StepShape> shapes = {{4, 1, {}, false}, {8, 2, {}, false},
                                                  {8, 2, {}, false}, {12, 0, {3, 2, 1}, false},
                                                  {4, 2, {}, false}, {12, 9, {}, true}};
    return shapes.at(step);
  };
  MicrobatchPolicy whole;
  whole.shape = [&](std::int64_t step, std::int64_t sample) {
    return StepShape{policy.shape(step, sample).batch, 0, {}, false};
  };
  Setup one;
  one.options["layers"] = 4;
  const std::vector<double> expected = losses(apart(one, whole, 6));
  Setup setup = one;
  const int mix = GENERATE(0, 1, 2, 3);
  setup.plan = mix == 0   ? std::vector{dp(2), tp(2)}
               : mix == 1 ? std::vector{zero(2, 1), tp(2)}
               : mix == 2 ? std::vector{zero(2, 3)}
                          : std::vector{pp(2, "zb-h1", {2, 2}), zero(2, 2)};
  const Experiment e = apart(setup, policy, 6);
  REQUIRE(e.step_plans);
  CHECK(e.step_plans->plans.size() == 5);
  CHECK(e.plan->request.batch == 12);
  CHECK(e.step_plans->first == std::vector<std::int64_t>{0, 4, 12, 20, 32, 36});
  const std::vector<double> found = losses(e);
  REQUIRE(found.size() == expected.size());
  for (std::size_t k = 0; k < found.size(); ++k)
    CHECK(found[k] == Approx(expected[k]).epsilon(1e-10));
}

TEST_CASE("fit takes the largest microbatches that fit") {
  Setup setup;
  setup.plan = {dp(2)};
  setup.batch = 22;
  const PlanRequest request = experiment(setup).plan->request;
  const auto peak = [&](std::vector<std::int64_t> sizes) {
    PlanRequest r = request;
    r.sizes = std::move(sizes);
    Problems problems;
    return highest_peak(*make_plan(r, problems));
  };
  const auto fitted = [&](std::int64_t limit) {
    MicrobatchPolicy policy;
    policy.search = [limit](const PlanRequest& r, Problems& problems) {
      return fit_microbatch(r, limit, problems);
    };
    std::shared_ptr<const StepPlans> all;
    Problems problems;
    const auto plan = make_step_plans(request, policy, 1, all, problems);
    return plan ? plan->sizes : std::vector<std::int64_t>{};
  };
  const std::vector<std::int64_t> thirds{4, 4, 3}, halves{6, 5}, ones(11, 1);
  REQUIRE(peak(thirds) < peak(halves));
  CHECK(fitted(peak({11})) == std::vector<std::int64_t>{11});
  CHECK(fitted(peak({11}) - 1) == halves);
  CHECK(fitted(peak(halves) - 1) == thirds);
  CHECK(fitted(peak(ones)) == ones);
  CHECK(fitted(peak(ones) - 1).empty());
}
