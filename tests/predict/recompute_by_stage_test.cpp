// Recompute that fits memory stage by stage, alone and together with balanced layouts.
#include <catch2/catch.hpp>
#include <random>

#include "meshwright/stage_balance.h"
#include "predict/fit.h"
#include "predict/prediction.h"
#include "predict/stage_layout.h"
#include "search_setups.h"

using namespace mw;
using namespace mw::test;

namespace {

PlanRequest staged(int layers, int vocab, int stages, const std::string& schedule, int chunks = 1) {
  Setup setup = small();
  setup.options["layers"] = layers;
  setup.options["vocab"] = vocab;
  setup.batch = 8;
  setup.microbatch = 1;
  Json options = {{"ways", stages}, {"schedule", schedule}};
  if (chunks > 1) options["chunks"] = chunks;
  setup.plan = {strategy("pp", std::move(options)), tp(2)};
  return experiment(setup).plan->request;
}

PlanRequest fitting(PlanRequest request, std::int64_t limit, bool by_stage = true) {
  request.recompute.kind = RecomputePolicy::Kind::fit;
  request.recompute.fit = limit;
  request.recompute.search = by_stage ? fit_recompute : fit_recompute_alike;
  return request;
}

PlanRequest with_full(PlanRequest request) {
  request.recompute.kind = RecomputePolicy::Kind::full;
  return request;
}

PlanRequest in_layers(PlanRequest request, const std::vector<int>& layers) {
  request.stage_layers = layers;
  return request;
}

std::shared_ptr<const Plan> planned(const PlanRequest& request) {
  Problems problems;
  auto plan = make_plan(request, problems);
  problems.throw_if_any();
  return plan;
}

// So many hundredths of the way from what full recompute holds to what none does.
std::int64_t between(const PlanRequest& request, int hundredths) {
  const std::int64_t full = highest_peak(*planned(with_full(request))),
                     none = highest_peak(*planned(request));
  REQUIRE(full < none);
  return full + (none - full) / 100 * hundredths;
}

double step_of(const Plan& plan, const Machine& machine) {
  return predict(plan, machine).step_seconds;
}

// What is made again of a stage, added up over parts and layers.
int made_again(const Plan& plan, std::size_t stage) {
  int count = 0;
  for (const auto& [part, layers] : plan.request.recompute.settings.at("stages").at(stage).items())
    count += layers.get<int>();
  return count;
}

}  // namespace

TEST_CASE("Stages that hold fewer microbatches make less again, and the step is shorter") {
  const ClusterMachine machine = two_nodes();
  const PlanRequest request = in_layers(staged(8, 1024, 4, "1f1b"), {2, 2, 2, 2});
  const std::int64_t limit = between(request, 30);
  const auto each = planned(fitting(request, limit)),
             alike = planned(fitting(request, limit, /*by_stage=*/false));
  CHECK(highest_peak(*each) <= limit);
  CHECK(highest_peak(*alike) <= limit);
  CHECK(step_of(*each, machine) < 0.99 * step_of(*alike, machine));
  CHECK(made_again(*each, 0) > made_again(*each, 1));
  CHECK(made_again(*each, 1) >= made_again(*each, 2));
  CHECK(made_again(*each, 3) == 0);
  for (std::size_t stage = 1; stage < 4; ++stage)
    CHECK(alike->request.recompute.settings.at("stages").at(stage) ==
          alike->request.recompute.settings.at("stages").at(0));
  CHECK(recompute_differs(*each));
  CHECK_FALSE(recompute_differs(*alike));
  const auto again = with_recompute_alike(*each);
  REQUIRE(again);
  CHECK(again->request.recompute.set.ops == alike->request.recompute.set.ops);
  CHECK(with_recompute_alike(*alike) == nullptr);
  CHECK(each->request.recompute.note.find("layers of stages 0 to 3") != std::string::npos);
  // Its description says what each stage does, and float64 does the same.
  CHECK(each->description().at("recompute").at("stages").size() == 4);
  CHECK(in_double(*each)->request.recompute.set.ops == each->request.recompute.set.ops);
}

TEST_CASE("By stage is never slower than alike, and fits where that does, in any layout") {
  const ClusterMachine machine = two_nodes();
  std::mt19937 random(11);
  const auto one_of = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  int shorter = 0;
  for (int round = 0; round < 10; ++round) {
    const int stages = 1 << one_of(1, 2), chunks = one_of(1, 2);
    const std::string schedule = chunks > 1 ? "interleaved" : round % 3 == 0 ? "gpipe" : "1f1b";
    const PlanRequest request =
        staged(stages * chunks + one_of(0, 3), one_of(1, 12) * 1024, stages, schedule, chunks);
    const std::vector<int> even = even_layers(planned(request)->graph->layers, stages * chunks);
    const std::int64_t limit = between(in_layers(request, even), one_of(5, 80));
    const auto alike = planned(fitting(in_layers(request, even), limit, /*by_stage=*/false)),
               each = planned(fitting(in_layers(request, even), limit));
    INFO("round " << round << ": " << each->mix() << ", " << each->request.recompute.note);
    CHECK(highest_peak(*alike) <= limit);
    CHECK(highest_peak(*each) <= limit);
    const double step = step_of(*each, machine), of_alike = step_of(*alike, machine);
    CHECK(step <= of_alike * (1 + 1e-9));
    shorter += step < 0.995 * of_alike ? 1 : 0;
    // A layout is chosen together with it.
    Problems problems;
    const auto balanced = make_balanced_plan(fitting(request, limit), machine, 0, problems, 1);
    REQUIRE(balanced);
    CHECK(highest_peak(*balanced) <= limit);
    CHECK(step_of(*balanced, machine) <= step * (1 + 1e-9));
  }
  CHECK(shorter >= 3);
}

TEST_CASE("A layout is balanced with what is made again in it, where the declared one fits not") {
  const ClusterMachine machine = two_nodes();
  const PlanRequest request = staged(8, 24'000, 4, "1f1b");
  const std::vector<int> declared = planned(request)->stage_layers, even = even_layers(8, 4);
  REQUIRE(declared != even);
  const auto least = [&](const std::vector<int>& layers) {
    return highest_peak(*planned(with_full(in_layers(request, layers))));
  };
  REQUIRE(least(declared) != least(even));
  const std::int64_t limit = (least(declared) + least(even)) / 2;
  Problems problems;
  const auto plan = make_balanced_plan(fitting(request, limit), machine, 0, problems);
  REQUIRE(plan);
  CHECK(highest_peak(*plan) <= limit);
  // With a limit that nothing keeps it says so as the planner does.
  CHECK(make_balanced_plan(fitting(request, 1), machine, 0, problems) == nullptr);
  REQUIRE_FALSE(problems.empty());
  CHECK(problems.list().front().code == "recompute.fit");
}

TEST_CASE("A layout is balanced with microbatches that fit") {
  const ClusterMachine machine = two_nodes();
  PlanRequest request = staged(8, 40'000, 4, "1f1b");
  request.batch = 16;
  PlanRequest of_two = in_layers(request, even_layers(8, 4));
  of_two.microbatch = 2;
  const std::int64_t limit = highest_peak(*planned(of_two));
  MicrobatchPolicy policy;
  policy.search = [limit](const PlanRequest& asked, Problems& found) {
    return fit_microbatch(asked, limit, found);
  };
  Problems problems;
  std::shared_ptr<const StepPlans> all;
  const auto plan = make_balanced_step_plans(request, policy, 1, machine, 0, all, problems);
  REQUIRE(plan);
  CHECK(all == nullptr);
  CHECK(highest_peak(*plan) <= limit);
  CHECK(plan->stage_layers != even_layers(8, 4));
  const auto evenly = policy.search(in_layers(request, even_layers(8, 4)), problems);
  REQUIRE(evenly);
  CHECK(step_of(*plan, machine) < 0.95 * step_of(*evenly, machine));
  // With recompute that fits too.
  const auto both =
      make_balanced_step_plans(fitting(request, limit), policy, 1, machine, 0, all, problems);
  REQUIRE(both);
  CHECK(highest_peak(*both) <= limit);
  CHECK(both->microbatch >= plan->microbatch);
}

TEST_CASE("Steps that differ have one layout, with which all of them take less") {
  const ClusterMachine machine = two_nodes();
  const PlanRequest request = staged(8, 40'000, 4, "1f1b");
  MicrobatchPolicy policy;
  policy.by_step = true;
  int asked = 0;
  policy.shape = [&asked](std::int64_t step, std::int64_t) {
    ++asked;
    return StepShape{step < 2 ? 4 : 8, 1, {}, false};
  };
  const auto seconds = [&](const Plan& plan, const std::shared_ptr<const StepPlans>& all) {
    if (!all) return 6 * step_of(plan, machine);
    double sum = 0;
    for (const int which : all->of_step) sum += step_of(*all->plans[which], machine);
    return sum;
  };
  Problems problems;
  std::shared_ptr<const StepPlans> all, evenly;
  const auto plan = make_balanced_step_plans(request, policy, 6, machine, 0, all, problems);
  REQUIRE(plan);
  REQUIRE(all);
  CHECK(asked == 6);  // a script's function is asked once for a step
  CHECK(all->plans.size() == 2);
  CHECK(all->plans[0]->stage_layers == all->plans[1]->stage_layers);
  const auto even =
      make_step_plans(in_layers(request, even_layers(8, 4)), policy, 6, evenly, problems);
  REQUIRE(even);
  CHECK(seconds(*plan, all) < 0.95 * seconds(*even, evenly));
}

TEST_CASE("A search plans what makes something again with what fits instead") {
  Asked asked(small());
  asked.request.strategies = {"dp", "pp"};
  asked.request.schedules = {"1f1b"};
  const SearchOutcome ample = search(asked.request);
  REQUIRE_FALSE(ample.best.empty());
  std::int64_t least = INT64_MAX;  // of those that make nothing again
  for (const FoundPlan& one : ample.checked) {
    if (one.recompute == "none") least = std::min(least, one.predicted.fullest().memory.peak);
  }
  REQUIRE(least < INT64_MAX);
  asked.request.memory = least - (least >> 5);  // so all must
  RecomputePolicy fit;
  fit.kind = RecomputePolicy::Kind::fit;
  fit.search = fit_recompute;
  fit.fit = asked.request.memory;
  asked.request.recompute.push_back({"fit", fit});
  const SearchOutcome found = search(asked.request);
  int fitted = 0;
  for (const FoundPlan& one : found.checked) {
    if (one.recompute != "fit" || !one.fits) continue;
    ++fitted;
    CHECK(one.predicted.fullest().memory.peak <= asked.request.memory);
    for (const FoundPlan& other : found.checked) {
      const bool same = other.plan == one.plan && other.microbatch == one.microbatch;
      if (same && other.recompute == "full")
        CHECK(one.predicted.step_seconds <= other.predicted.step_seconds * (1 + 1e-9));
    }
  }
  CHECK(fitted > 0);
  CHECK(found.best.front().recompute == "fit");
  CHECK(found.candidates == ample.candidates);  // it is no candidate of the closed form
}
