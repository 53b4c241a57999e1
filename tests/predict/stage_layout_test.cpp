// Layouts of stages: balanced by declared costs, and by what a cluster is predicted to take.
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "meshwright/stage_balance.h"
#include "predict/memory_limit.h"
#include "predict/prediction.h"
#include "predict/stage_layout.h"
#include "search_setups.h"

using namespace mw;
using namespace mw::test;

namespace {

double highest(const LayerCosts& costs, const std::vector<int>& layers,
               const std::vector<int>& stage_of) {
  const std::vector<double> stages = stage_costs(costs, layers, stage_of);
  return *std::max_element(stages.begin(), stages.end());
}

// Calls `visit` with every way to part the layers of which the inner parts have one at least.
void each_layout(int layers, int parts, const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> list;
  const std::function<void(int)> more = [&](int left) {
    const auto place = static_cast<int>(list.size());
    if (place + 1 == parts) {
      list.push_back(left);
      visit(list);
      list.pop_back();
      return;
    }
    for (int n = place == 0 ? 0 : 1; n <= left; ++n) {
      list.push_back(n);
      more(left - n);
      list.pop_back();
    }
  };
  more(layers);
}

Setup staged(int layers, int vocab, const StrategyChoice& pipeline) {
  Setup setup = small();
  setup.options["layers"] = layers;
  setup.options["vocab"] = vocab;
  setup.batch = 16;
  setup.microbatch = 1;
  setup.plan = {pipeline, tp(2)};
  return setup;
}

StrategyChoice stages(int ways, const std::string& schedule, const Json& layout, int chunks = 1) {
  Json options = {{"ways", ways}, {"schedule", schedule}, {"layout", layout}};
  if (chunks > 1) options["chunks"] = chunks;
  return strategy("pp", std::move(options));
}

std::shared_ptr<const Plan> balanced(const Setup& setup, const Machine& machine) {
  Problems problems;
  auto plan = make_balanced_plan(experiment(setup).plan->request, machine, 0, problems);
  problems.throw_if_any();
  return plan;
}

}  // namespace

TEST_CASE("Stages are as even as can be where the ends cost nothing") {
  const LayerCosts costs{std::vector<double>(10, 1.0), 0, 0};
  CHECK(balance_layers(costs, {0, 1, 2, 3}) == std::vector<int>{3, 3, 2, 2});
  CHECK(balance_layers(costs, {0, 1, 0, 1}) == std::vector<int>{3, 3, 2, 2});
  CHECK(balance_layers(costs, {0}) == std::vector<int>{10});
}

TEST_CASE("Of fewer layers than stages the ends have none") {
  CHECK(even_layers(7, 8) == std::vector<int>{1, 1, 1, 1, 1, 1, 1, 0});
  CHECK(even_layers(6, 8) == std::vector<int>{0, 1, 1, 1, 1, 1, 1, 0});
  CHECK(even_layers(1, 2) == std::vector<int>{1, 0});
  const LayerCosts costs{std::vector<double>(7, 1.0), 2, 0};
  CHECK(balance_layers(costs, {0, 1, 2, 3, 4, 5, 6, 7}) ==
        std::vector<int>{0, 1, 1, 1, 1, 1, 1, 1});
}

TEST_CASE("Of layouts that cost as much the one with the lowest peak is taken") {
  const PlanRequest request = experiment(staged(9, 64, stages(4, "1f1b", "auto"))).plan->request;
  Problems problems;
  const auto own = make_plan(request, problems), found = make_plan_within(request, 0, problems);
  REQUIRE(problems.empty());
  const LayerCosts costs = declared_costs(*own->graph);
  const std::vector<int>& stage_of = own->schedule.stage_of;
  CHECK(highest(costs, found->stage_layers, stage_of) ==
        Approx(highest(costs, own->stage_layers, stage_of)));
  CHECK(highest_peak(*found) < highest_peak(*own));
}

TEST_CASE("No layout has a lower highest cost, whatever the ends cost") {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    const int parts = 2 + static_cast<int>(random() % 3);
    const int layers = parts + static_cast<int>(random() % 9);
    LayerCosts costs{std::vector<double>(layers, 1.0), 0.1 * static_cast<double>(random() % 30),
                     0.1 * static_cast<double>(random() % 60)};
    std::vector<int> stage_of(parts);
    std::iota(stage_of.begin(), stage_of.end(), 0);
    double lowest = 1e9;
    each_layout(layers, parts, [&](const std::vector<int>& layout) {
      lowest = std::min(lowest, highest(costs, layout, stage_of));
    });
    const std::vector<int> found = balance_layers(costs, stage_of);
    INFO("round " << round << ": " << layers << " layers, " << parts << " stages, ends "
                  << costs.first << " and " << costs.last);
    CHECK(std::accumulate(found.begin(), found.end(), 0) == layers);
    CHECK(highest(costs, found, stage_of) <= lowest * (1 + 1e-9));
  }
}

TEST_CASE("Declared costs are those of a plan in any precision, batch or mix") {
  const Experiment e = experiment(staged(8, 50'000, stages(4, "1f1b", "auto")));
  Setup wider = staged(8, 50'000, stages(4, "1f1b", "auto"));
  wider.precision = Precision::fp32;
  wider.batch = 64;
  wider.microbatch = 4;
  wider.plan = {stages(4, "1f1b", "auto"), dp(2)};
  const std::vector<int> layers = e.plan->stage_layers;
  CHECK(layers.front() > layers.back());
  CHECK(experiment(wider).plan->stage_layers == layers);
  CHECK(in_double(*e.plan)->stage_layers == layers);
}

TEST_CASE("A balanced plan is within 2 % of the best of all layouts") {
  const ClusterMachine machine = two_nodes();
  const Setup setup = staged(8, 40'000, stages(4, "1f1b", "auto"));
  PlanRequest request = experiment(setup).plan->request;
  double best = 1e9, even = 0;
  each_layout(8, 4, [&](const std::vector<int>& layout) {
    request.stage_layers = layout;
    Problems problems;
    const auto plan = make_plan(request, problems);
    REQUIRE(plan != nullptr);
    const double step = predict(*plan, machine).step_seconds;
    best = std::min(best, step);
    if (layout == even_layers(8, 4)) even = step;
  });
  const auto plan = balanced(setup, machine);
  const double step = predict(*plan, machine).step_seconds;
  CHECK(step < 1.02 * best);
  CHECK(step < 0.9 * even);
  REQUIRE_FALSE(plan->notes.empty());
  CHECK(plan->notes.front().find("by predicted times and memory") != std::string::npos);
}

TEST_CASE("A balanced plan is never slower than an even one, and fits where that does") {
  std::mt19937 random(9);
  const auto one_of = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  for (int round = 0; round < 20; ++round) {
    const int ways = 1 << one_of(1, 2), chunks = one_of(1, 2);
    const std::string schedule =
        chunks > 1 ? "interleaved" : std::vector{"1f1b", "gpipe", "zb-h1"}[one_of(0, 2)];
    const Setup setup = staged(ways * chunks + one_of(0, 9), one_of(1, 40) * 1024,
                               stages(ways, schedule, "auto", chunks));
    Cluster cluster = two_nodes().cluster();
    cluster.network.nic = 1e9 * one_of(1, 50);
    const PlanRequest request = experiment(setup).plan->request;
    PlanRequest evenly = request;
    Problems problems;
    evenly.stage_layers = even_layers(experiment(setup).plan->graph->layers, ways * chunks);
    const auto even = make_plan(evenly, problems);
    REQUIRE(even != nullptr);
    // The device has a little more memory than the even layout needs, or a little less.
    const std::int64_t peak =
        predict(*even, ClusterMachine(cluster, round_stack())).fullest().memory.peak;
    cluster.device.memory = round % 2 == 0 ? peak + (peak >> 6) : peak - (peak >> 6);
    const ClusterMachine machine(cluster, round_stack());
    const auto plan = make_balanced_plan(request, machine, 0, problems);
    REQUIRE(plan != nullptr);
    const Prediction as_even = predict(*even, machine), found = predict(*plan, machine);
    INFO("round " << round << ": " << plan->mix());
    if (as_even.fits) {
      CHECK(found.fits);
      CHECK(found.step_seconds <= as_even.step_seconds * (1 + 1e-9));
    } else {
      CHECK((found.fits || found.fullest().memory.peak <= as_even.fullest().memory.peak));
    }
  }
}

TEST_CASE("Layouts begin with the plan and the prediction that are there") {
  int edits = 0;
  PlanRequest request = experiment(staged(8, 40'000, stages(4, "1f1b", "auto"))).plan->request;
  request.strategies.push_back(does("counted", {{"counted", 1}}, [&](Draft&) { ++edits; }));
  const ClusterMachine machine = two_nodes();
  Problems problems;
  const auto own = make_plan(request, problems);
  REQUIRE(own != nullptr);
  edits = 0;
  const auto made = make_balanced_plan(request, machine, 0, problems);
  const int all = std::exchange(edits, 0);
  const PredictedPlan found =
      predict_balanced_plan(request, machine, 0, {own, predict(*own, machine)});
  CHECK(edits == all - 1);
  REQUIRE(made != nullptr);
  REQUIRE(found.plan != nullptr);
  CHECK(found.plan->stage_layers != even_layers(8, 4));  // made again, with a note
  CHECK(found.plan->hash() == made->hash());
  CHECK(found.plan->notes == made->notes);
  CHECK(found.predicted.to_json() == predict(*made, machine).to_json());
}

TEST_CASE("A slow node takes longer, and its stage gets fewer layers") {
  Setup setup = staged(16, 64, stages(4, "1f1b", "even"));
  Cluster c = round_cluster(2);
  c.nodes = 4;
  c.device.kernel = 0;
  c.network = {1e10, 1, 0, 0, 1, 0};
  const auto even = experiment(setup).plan;
  const Prediction alike = predict(*even, ClusterMachine(c, round_stack()));
  c.slow = {{1, 1, 0, {2, 1, 1}}};  // one of the two devices of the second stage
  const ClusterMachine machine(c, round_stack());
  const Prediction slow = predict(*even, machine);
  CHECK(slow.parts[1].compute == Approx(2 * alike.parts[1].compute).epsilon(0.05));
  CHECK(slow.parts[2].compute == Approx(alike.parts[2].compute));
  CHECK(slow.step_seconds > 1.5 * alike.step_seconds);
  CHECK(slow.step_basis() == Basis::beyond);

  setup.plan = {stages(4, "1f1b", "auto"), tp(2)};
  const auto chosen = balanced(setup, machine);
  const std::vector<int>& layers = chosen->stage_layers;
  CHECK(std::accumulate(layers.begin(), layers.end(), 0) == 16);
  CHECK(layers[1] < layers[0]);
  CHECK(layers[1] < layers[2]);
  CHECK(predict(*chosen, machine).step_seconds < 0.8 * slow.step_seconds);
}

TEST_CASE("Slow links hold up what goes over them") {
  const Setup setup = staged(8, 64, stages(2, "1f1b", "even"));
  const auto plan = experiment(setup).plan;
  Cluster c = round_cluster(2);
  c.nodes = 2;
  c.network = {1e6, 1, 0, 0, 1, 0};
  const auto seconds = [&](const char* axis) {
    double sum = 0;
    for (const CommunicationForecast& each :
         predict(*plan, ClusterMachine(c, round_stack())).communication)
      sum += each.key.axis == axis ? each.seconds : 0;
    return sum;
  };
  const double sends = seconds("pp"), sums = seconds("tp");
  c.node.latency = 0;
  const double sums_alone = seconds("tp");
  CHECK(sums_alone < sums);
  c.slow = {{1, 1, -1, {1, 1, 3}}};
  CHECK(seconds("pp") == Approx(3 * sends).epsilon(0.05));  // both ways, though one end is slow
  CHECK(seconds("tp") == Approx(sums_alone));
  c.slow = {{0, 1, -1, {1, 3, 1}}};
  CHECK(seconds("pp") == Approx(sends));
  CHECK(seconds("tp") == Approx(3 * sums_alone));
}
