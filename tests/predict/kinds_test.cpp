// Clusters whose nodes have devices of several kinds: what stages take and hold on them, how layers
// are shared out, and what a search makes of them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "predict/memory_limit.h"
#include "predict/on_cluster.h"
#include "predict/prediction.h"
#include "predict/stage_layout.h"
#include "search/uneven.h"
#include "search_setups.h"
#include "support/problems.h"

using namespace mw;
using namespace mw::test;

namespace {

// Nodes of two devices.
Cluster four_nodes() {
  Cluster c = round_cluster(2);
  c.nodes = 4;
  c.device.kernel = 0;
  c.device.name = "slow-device";
  c.network = {1e9, 1, 0, 0, 1, 0};
  return c;
}

// Nodes of devices that are so many times as fast.
Cluster faster_nodes(int nodes, double faster, std::int64_t memory = 16LL << 30) {
  Cluster c = four_nodes();
  c.nodes = nodes;
  c.device.name = "fast-device";
  for (double* rate : {&c.device.peak16, &c.device.peak32, &c.device.peak64, &c.device.bandwidth})
    *rate *= faster;
  c.device.memory = memory;
  return c;
}

ClusterMachine with_kinds(std::vector<Cluster> kinds) {
  Cluster c = four_nodes();
  c.kinds = std::move(kinds);
  return {c, round_stack()};
}

Setup piped(int ways, const Json& layout) {
  Setup setup = small();
  setup.options["layers"] = 16;
  setup.options["vocab"] = 64;
  setup.batch = 16;
  setup.microbatch = 1;
  setup.plan = {strategy("pp", {{"ways", ways}, {"schedule", "1f1b"}, {"layout", layout}}), tp(2)};
  return setup;
}

std::shared_ptr<const Plan> balanced_on(const Setup& setup, const Machine& machine) {
  Problems problems;
  auto plan = make_balanced_plan(experiment(setup).plan->request, machine, 0, problems);
  REQUIRE(problems.empty());
  return plan;
}

// All numbers, as a text, without the machine's name.
std::string numbers_of(const Prediction& p) {
  Json json = p.to_json();
  json.erase("priced_for");
  return json.dump();
}

Json table_of_kinds(const Json& kinds) {
  Json table = cluster_table();
  table["nodes"] = 4;
  table["kinds"] = kinds;
  return table;
}

std::string first_problem(const Json& kinds) {
  return cluster_refusal(table_of_kinds(kinds));
}

}  // namespace

TEST_CASE("Kinds that are alike give the numbers of the plain cluster") {
  const auto plan = experiment(piped(4, "even")).plan;
  const ClusterMachine plain(four_nodes(), round_stack());
  const ClusterMachine alike = with_kinds({faster_nodes(1, 1), faster_nodes(2, 1)});
  CHECK_FALSE(alike.uneven());
  CHECK(numbers_of(predict(*plan, alike)) == numbers_of(predict(*plan, plain)));
  // The same through all that looks at parts: nothing but a byte of memory differs.
  const ClusterMachine nearly = with_kinds({faster_nodes(2, 1, (16LL << 30) + 1)});
  CHECK(nearly.uneven());
  CHECK(predict(*plan, nearly).step_seconds == predict(*plan, plain).step_seconds);
}

TEST_CASE("A stage takes what its slowest device takes") {
  const auto plan = experiment(piped(4, "even")).plan;
  const Prediction plain = predict(*plan, ClusterMachine(four_nodes(), round_stack()));
  const Prediction fast = predict(*plan, with_kinds({faster_nodes(1, 1), faster_nodes(1, 2)}));
  CHECK(fast.parts[0].compute == Approx(plain.parts[0].compute));
  CHECK(fast.parts[1].compute == Approx(plain.parts[1].compute / 2).epsilon(0.01));
  CHECK(fast.parts[2].compute == Approx(plain.parts[2].compute));  // of no kind
  CHECK(fast.step_basis() == Basis::beyond);
  CHECK(fast.peak_flops == Approx(plain.peak_flops * 5 / 4));

  // Two nodes for each stage, of which the second stage has one that is faster.
  Setup setup = piped(2, "even");
  setup.plan = {strategy("pp", {{"ways", 2}, {"schedule", "1f1b"}, {"layout", "even"}}), dp(2),
                tp(2)};
  const auto wide = experiment(setup).plan;
  const Prediction both = predict(*wide, ClusterMachine(four_nodes(), round_stack()));
  const Prediction mixed = predict(*wide, with_kinds({faster_nodes(3, 1), faster_nodes(1, 2)}));
  CHECK(mixed.parts[1].compute == Approx(both.parts[1].compute));
  const Prediction whole = predict(*wide, with_kinds({faster_nodes(2, 1), faster_nodes(2, 2)}));
  CHECK(whole.parts[1].compute < 0.6 * both.parts[1].compute);
}

TEST_CASE("A collective over two kinds takes what the slower links take") {
  Setup setup = small();
  setup.batch = 16;
  setup.plan = {dp(8)};
  const auto plan = experiment(setup).plan;
  const auto sums = [&](const ClusterMachine& machine) {
    double seconds = 0;
    for (const CommunicationForecast& each : predict(*plan, machine).communication)
      seconds += each.seconds;
    return seconds;
  };
  Cluster other = faster_nodes(1, 1), slower = four_nodes();
  other.network.nic /= 4;
  slower.network.nic /= 4;
  const double all = sums(ClusterMachine(slower, round_stack()));
  CHECK(all > 3 * sums(ClusterMachine(four_nodes(), round_stack())));
  CHECK(sums(with_kinds({faster_nodes(3, 1), other})) == Approx(all));
}

TEST_CASE("Layers go to the stages that are faster") {
  const ClusterMachine machine = with_kinds({faster_nodes(2, 1), faster_nodes(2, 3)});
  const Prediction even = predict(*experiment(piped(4, "even")).plan, machine);
  const auto chosen = balanced_on(piped(4, "auto"), machine);
  const std::vector<int>& layers = chosen->stage_layers;
  REQUIRE(layers.size() == 4);
  CHECK(std::accumulate(layers.begin(), layers.end(), 0) == 16);
  CHECK(layers[2] >= 2 * layers[0]);
  CHECK(layers[3] >= 2 * layers[1]);
  // In proportion to the devices the stages have 2, 2, 6 and 6 of the 16 layers.
  CHECK(predict(*chosen, machine).step_seconds < 0.65 * even.step_seconds);
}

TEST_CASE("Each rank is held against the memory of its own device") {
  const auto plan = experiment(piped(4, "even")).plan;
  const Prediction plain = predict(*plan, ClusterMachine(four_nodes(), round_stack()));
  const std::int64_t first = plain.stages[0].memory.peak, last = plain.stages[3].memory.peak;
  REQUIRE(first > last);  // 1F1B holds most microbatches on the first stage
  const std::int64_t between = (first + last) / 2;
  // Devices with less on the last nodes suffice there, and do not on the first.
  const Prediction fits =
      predict(*plan, with_kinds({faster_nodes(3, 1), faster_nodes(1, 1, between)}));
  CHECK(fits.fits);
  CHECK(fits.fullest().stage == 3);
  CHECK(fits.memory_limit == between);
  Prediction over = predict(*plan, with_kinds({faster_nodes(1, 1, between)}));
  CHECK_FALSE(over.fits);
  CHECK(over.memory_needed == first);
  CHECK_THAT(room_text(over), Catch::Contains("a rank of stage 0 against") &&
                                  Catch::Contains("of memory on fast-device"));
  CHECK(over.to_json()["memory"][0]["device"] == "fast-device");
  // A user's limit bounds the larger devices alone.
  Prediction limited =
      predict(*plan, with_kinds({faster_nodes(3, 1), faster_nodes(1, 1, between)}));
  limited.limit_memory(first);
  CHECK(limited.fits);
  limited.limit_memory(first - 1);
  CHECK_FALSE(limited.fits);
  // Layouts leave the small device what it can hold.
  const ClusterMachine small_first = with_kinds({faster_nodes(1, 1, first * 3 / 4)});
  const auto chosen = balanced_on(piped(4, "auto"), small_first);
  CHECK(predict(*chosen, small_first).fits);
  CHECK(chosen->stage_layers[0] < 4);
}

TEST_CASE("A kind is described by what is other of it, or as a whole cluster") {
  Problems none;
  Json table = table_of_kinds({{{"nodes", 1}},
                               {{"nodes", 2},
                                {"device", {{"name", "small"}, {"memory", "8GiB"}}},
                                {"network", {{"nic", 5e9}}}}});
  Cluster c = read_cluster(table, "cluster", none);
  REQUIRE(none.empty());
  REQUIRE(c.kinds.size() == 2);
  CHECK(c.kinds[0].device == c.device);
  CHECK(c.kinds[1].device.memory == 8LL << 30);
  CHECK(c.kinds[1].device.peak16 == 1e14);
  CHECK(c.kinds[1].network.nic == 5e9);
  const ClusterParts parts(c);
  CHECK(parts.all().size() == 2);
  CHECK(std::vector{parts.of(3), parts.of(4), parts.of(11), parts.of(12)} ==
        std::vector{0, 1, 1, 0});

  table.erase("nodes");  // as many as the kinds have
  CHECK(read_cluster(table, "cluster", none).nodes == 3);
  Json whole = table_of_kinds(Json::array());
  whole["kind"] = "cluster";
  whole.erase("kinds");
  whole["nodes"] = 1;
  whole["device"].erase("gemm");
  CHECK(first_problem(Json::array({whole})) == "option.missing cluster.kinds[1].device.gemm");
  CHECK(first_problem({{{"nodes", 3}}, {{"nodes", 2}}}) == "cluster.value cluster.kinds");
  CHECK(first_problem({{{"nodes", 1}, {"node", {{"devices", 8}}}}}) ==
        "cluster.value cluster.kinds[1].node.devices");
  CHECK(first_problem({{{"nodes", 1}, {"device", {{"peek16", 1}}}}}) ==
        "option.unknown cluster.kinds[1].device.peek16");
  CHECK(first_problem({{{"nodes", 1}, {"torus", Json::object()}}}) ==
        "option.unknown cluster.kinds[1].torus");
}

namespace {

// Two nodes of four devices of which the second has other devices.
Asked asked_of(double slower_compute, double faster_kind) {
  Asked asked(small());
  Cluster c = asked.machine.cluster();
  if (slower_compute > 1) c.slow = {{1, 1, -1, {slower_compute, 1, 1}}};
  if (faster_kind != 1) {
    Cluster other = c;
    other.nodes = 1;
    for (double* rate : {&other.device.peak16, &other.device.bandwidth}) *rate *= faster_kind;
    c.kinds = {other, c};
    c.kinds[1].nodes = 1;
    c.kinds[1].kinds.clear();
  }
  asked.machine = ClusterMachine(c, asked.machine.stack());
  asked.request.sampled = 60;
  return asked;
}

double mean_error(const SearchOutcome& found) {
  double sum = 0;
  for (const FoundPlan& one : found.sample)
    sum += std::abs(one.closed_form_seconds / one.predicted.step_seconds - 1);
  return sum / static_cast<double>(found.sample.size());
}

bool has_stages(const FoundPlan& found) {
  return std::ranges::any_of(found.entries,
                             [](const Json& entry) { return entry.at("plugin") == "pp"; });
}

// The time of the fastest plan with stages over that of the fastest without, by the closed form.
double staged_over_others(const SearchOutcome& found) {
  double staged = INFINITY, others = INFINITY;
  for (const FoundPlan& one : found.sample) {
    double& least = has_stages(one) ? staged : others;
    least = std::min(least, one.closed_form_seconds);
  }
  return staged / others;
}

}  // namespace

TEST_CASE("Layers that a search shares out make the busiest stage shortest") {
  Asked slow = asked_of(3, 1);
  slow.request.machine = &slow.machine;
  UnevenStages stages(slow.request);
  REQUIRE(stages.parts() == std::vector{0, 1});
  // The two stages have 6 and 2 of the 8 layers, which take 1 and 3 seconds there.
  CHECK(stages.seconds(2, 1, {{4, 0}, {12, 0}}) == Approx(6));
  CHECK(stages.seconds(2, 1, {{4, 1}, {12, 3}}) == Approx(6 + 6 * 1 / 8.0 + 2 * 3 / 8.0));
  CHECK(stages.seconds(2, 3, {{4, 0}, {12, 0}}) == Approx(9));  // a layer in each of three chunks
  // A stage for each layer: the slow ones decide, and the others wait less.
  CHECK(stages.seconds(8, 1, {{1, 7}, {3, 21}}) == Approx(3 + (4 * 7 + 4 * 21) / 8.0));
  CHECK(stages.seconds(1, 1, {{4, 0}, {12, 0}}) == Approx(12));
  CHECK(stages.seconds(2, 1, {{4, 1}, {4, 1}}) == Approx(5));
}

TEST_CASE("A search's closed form knows slow nodes and kinds of devices") {
  Asked plain = asked_of(1, 1), slow = asked_of(3, 1), kinds = asked_of(1, 3);
  for (Asked* each : {&plain, &slow, &kinds}) each->request.machine = &each->machine;
  const SearchOutcome as_plain = search(plain.request), as_slow = search(slow.request),
                      as_kinds = search(kinds.request);
  CHECK(mean_error(as_slow) < 0.2);
  CHECK(mean_error(as_kinds) < 0.2);
  // Stages can have layers in proportion to their devices, and parts of a batch are all alike.
  CHECK(staged_over_others(as_slow) < 0.8 * staged_over_others(as_plain));
  CHECK(staged_over_others(as_kinds) < 0.8 * staged_over_others(as_plain));
  CHECK(has_stages(as_slow.best.front()));
  for (const SearchOutcome* each : {&as_slow, &as_kinds}) {
    const double best = each->best.front().predicted.step_seconds;
    for (const FoundPlan& one : each->sample) CHECK(best <= 1.05 * one.predicted.step_seconds);
  }
}
