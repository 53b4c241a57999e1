// Described clusters: kernels and collectives by hand, and what is refused.
#include <catch2/catch.hpp>

#include "clusters.h"
#include "predict/network.h"
#include "predict/on_cluster.h"
#include "predict/prediction.h"
#include "setups.h"
#include "support/problems.h"

using namespace mw;
using namespace mw::test;

namespace {

Cluster cluster_of_two() {
  Cluster c = round_cluster(4);
  c.nodes = 2;
  c.network = {1e9, 1, 1e-5, 1e-6, 1, 0};
  return c;
}

}  // namespace

TEST_CASE("A product takes whole tiles, one for each unit at least") {
  DeviceType d = round_cluster().device;
  d.kernel = 0;
  CHECK(gemm_seconds(d, Dtype::bf16, 1000, 1000, 1000) == Approx(2e9 / 1e11));
  d.units = 10;
  d.tiles = {{100, 100, 1}};
  CHECK(gemm_seconds(d, Dtype::bf16, 1000, 1000, 1000) == Approx(2e9 / 1e11));
  CHECK(gemm_seconds(d, Dtype::bf16, 1001, 1000, 1000) == Approx(2.2e9 / 1e11));
  // One tile keeps one unit of ten busy.
  CHECK(gemm_seconds(d, Dtype::bf16, 100, 100, 1000) == Approx(2e7 / 1e10));
  d.tile_k = 500;
  CHECK(gemm_seconds(d, Dtype::bf16, 1000, 1000, 1000) == Approx(3e9 / 1e11));
  // The bytes decide of a thin one: 2 bytes of each element.
  CHECK(gemm_seconds(d, Dtype::bf16, 1, 1000000, 1) > 2e6 * 2 / 1e10);
}

TEST_CASE("The slower of device and host decides") {
  const DeviceType d = round_cluster().device;
  CHECK(phase_seconds(d, 1, 0) == 1);
  CHECK(phase_seconds(d, 1, 0.1) == Approx(1).epsilon(1e-4));
  CHECK(phase_seconds(d, 0.1, 1) == Approx(1).epsilon(1e-4));
  CHECK(phase_seconds(d, 1, 1) == Approx(std::pow(2, 1 / 4.5)));
}

TEST_CASE("Collectives inside a node, by a ring or a measured curve") {
  Cluster c = round_cluster(8);
  const RankPlacement all = place(c, {0, 1, 2, 3});
  CHECK(all.nodes == 1);
  const double ring = 2 * 0.75 * 1e9 / 1e10 + 6 * 1e-5;
  CHECK(collective_seconds(c, Collective::all_reduce, 1e9, all, {}) == Approx(ring));
  CHECK(collective_seconds(c, Collective::all_gather, 1e9, all, {}) == Approx(ring / 2));
  c.node.curves = {{4, LogCurve({{1e6, 1e-4}, {1e8, 1e-3}})}};
  CHECK(collective_seconds(c, Collective::all_reduce, 1e6, all, {}) == Approx(1e-4));
  CHECK(collective_seconds(c, Collective::all_reduce, 1e7, all, {}) ==
        Approx(std::sqrt(1e-4 * 1e-3)));
  CHECK(collective_seconds(c, Collective::all_reduce, 1e9, all, {}) == Approx(1e-2));
  CHECK(collective_seconds(c, Collective::all_reduce, 1e6, place(c, {5}), {}) == 0);
  // On a link of half the bandwidth each size takes what twice of it takes on the curve's.
  c.node.curve_bandwidth = c.node.bandwidth;
  c.node.bandwidth /= 2;
  CHECK(collective_seconds(c, Collective::all_reduce, 5e6, all, {}) ==
        Approx(std::sqrt(1e-4 * 1e-3)));
  CHECK(collective_seconds(c, Collective::all_reduce, 1e9, all, {}) == Approx(2e-2));
}

TEST_CASE("A measured collective takes what its own curve says, over nodes too") {
  Cluster c = cluster_of_two();
  const RankPlacement all = place(c, {0, 1, 2, 3, 4, 5, 6, 7}), node = place(c, {0, 1, 2, 3});
  // Steps that no latency and rate have.
  const std::vector<std::pair<double, double>> steps = {
      {1e6, 1e-4}, {2e6, 1.1e-4}, {4e6, 9e-4}, {8e6, 1e-3}, {1e8, 1.1e-3}};
  const Collective measured[] = {Collective::all_reduce, Collective::all_gather,
                                 Collective::reduce_scatter, Collective::all_to_all};
  double times = 1;
  for (const Collective op : measured) {
    auto points = steps;
    for (auto& [bytes, seconds] : points) seconds *= times;
    c.node.curves.push_back({4, LogCurve(points), op});
    for (auto& [bytes, seconds] : points) seconds *= 10;
    c.network.curves.push_back({8, LogCurve(points), op, 2});
    times += 0.5;
  }
  c.node.curves.push_back({4, LogCurve(steps), Collective::send});
  c.network.curves.push_back({8, LogCurve(steps), Collective::send, 2});
  c.network.curve_nic = c.network.nic;
  times = 1;
  for (const Collective op : measured) {
    for (const auto& [bytes, seconds] : steps) {
      INFO(name_of(op) << " " << bytes);
      CHECK(collective_seconds(c, op, bytes, node, {}) == Approx(times * seconds));
      CHECK(collective_seconds(c, op, bytes, all, {}) == Approx(10 * times * seconds));
      CHECK(collective_basis(c, op, bytes, all, {}) == Basis::measured);
    }
    CHECK(collective_seconds(c, op, std::sqrt(2e6 * 4e6), all, {}) ==
          Approx(10 * times * std::sqrt(1.1e-4 * 9e-4)));
    times += 0.5;
  }
  for (const auto& [bytes, seconds] : steps) {
    CHECK(send_seconds(c, bytes, 0, 1) == Approx(seconds));
    CHECK(send_seconds(c, bytes, 3, 4) == Approx(seconds));
  }
  // NICs of twice the rate take half of the bytes' time; groups of a part of a node have no curve.
  const double before = collective_seconds(c, Collective::all_reduce, 4e6, all, {}),
               part = collective_seconds(c, Collective::all_reduce, 4e6, place(c, {0, 4}), {});
  CHECK(part < before / 2);
  c.network.nic *= 2;
  CHECK(collective_seconds(c, Collective::all_reduce, 8e6, all, {}) == Approx(before));
  // A scatter that was not measured takes what a gather takes, not half of NCCL's tree of 2 nodes.
  c.network.nic /= 2;
  std::erase_if(c.network.curves, [](const CollectiveCurve& curve) {
    return curve.op == Collective::reduce_scatter;
  });
  CHECK(collective_seconds(c, Collective::reduce_scatter, 4e6, all, {}) == Approx(10 * 1.5 * 9e-4));
}

TEST_CASE("More nodes than were measured are not faster, nor fewer slower") {
  Cluster c = cluster_of_two();
  c.nodes = 4;
  const std::vector<int> ranks = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const RankPlacement two = place(c, {ranks.begin(), ranks.begin() + 8}), four = place(c, ranks);
  const double described = collective_seconds(c, Collective::all_reduce, 1e7, four, {});
  c.network.curve_nic = c.network.nic;
  c.network.curves = {
      {8, LogCurve({{1e6, 5 * described}, {1e8, 6 * described}}), Collective::all_reduce, 2}};
  CHECK(collective_seconds(c, Collective::all_reduce, 1e7, four, {}) ==
        Approx(collective_seconds(c, Collective::all_reduce, 1e7, two, {})));
  c.network.curves[0].nodes = 4;
  c.network.curves[0].ranks = 16;
  auto points = c.network.curves[0].times.points();
  for (auto& [bytes, seconds] : points) seconds /= 1000;
  c.network.curves[0].times = LogCurve(points);
  CHECK(collective_seconds(c, Collective::all_reduce, 1e7, two, {}) ==
        Approx(collective_seconds(c, Collective::all_reduce, 1e7, four, {})));
}

TEST_CASE("All groups of a node share its NICs") {
  const Cluster c = cluster_of_two();
  const RankPlacement one = place(c, {0, 4}), four = place(c, {0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(one.nodes == 2);
  CHECK(one.in_node == 1);
  CHECK(four.in_node == 4);
  // A group with one rank in a node has one device's share, one with four has four.
  const double alone = collective_seconds(c, Collective::all_reduce, 1e9, one, {}),
               together = collective_seconds(c, Collective::all_reduce, 1e9, four, {});
  CHECK(alone == Approx(1e9 / 1e9).epsilon(0.01));
  // Among four within each node, then a quarter of it across: less than one ring of all takes.
  CHECK(together == Approx(2 * 3.0 / 4 * 1e9 / 1e10 + 1e9 / 4 / 1e9).epsilon(0.01));
  CHECK(collective_seconds(c, Collective::all_reduce, 1e9, one, {0.5, true}) ==
        Approx(2 * alone).epsilon(0.01));
  CHECK(send_seconds(c, 1e9, 0, 1) == Approx(0.1).epsilon(0.01));
  CHECK(send_seconds(c, 1e9, 3, 4) == Approx(1).epsilon(0.01));
}

TEST_CASE("Above a pod the tree may be slower") {
  Cluster c = cluster_of_two();
  c.network.pod = 1;
  const double full = collective_seconds(c, Collective::all_reduce, 1e9, place(c, {0, 4}), {});
  c.network.oversubscription = 7;
  CHECK(collective_seconds(c, Collective::all_reduce, 1e9, place(c, {0, 4}), {}) ==
        Approx(7 * full).epsilon(0.01));
}

TEST_CASE("A torus gives each dim of it that a group spans two links") {
  Cluster c = round_cluster(4);
  c.nodes = 4;
  c.torus = {{4, 4}, 1e9, 1, 0};
  const auto seconds = [&](const std::vector<int>& ranks) {
    return collective_seconds(c, Collective::all_reduce, 1e9, place(c, ranks), {});
  };
  CHECK(seconds({0, 1, 2, 3}) == Approx(2 * 0.75 / 2));   // a ring of four, both ways round
  CHECK(seconds({0, 1}) == Approx(2 * 0.5 / 1));          // a piece of it is a line
  CHECK(seconds({0, 4, 8, 12}) == Approx(2 * 0.75 / 2));  // the other dim
  std::vector<int> all(16);
  for (int k = 0; k < 16; ++k) all[k] = k;
  CHECK(seconds(all) == Approx(2 * 15.0 / 16 / 4));
}

TEST_CASE("An all-to-all takes what goes through the middle of a torus") {
  Cluster c = round_cluster(4);
  c.nodes = 16;
  c.torus = {{8, 8}, 1e9, 1, 0};
  const auto seconds = [&](const std::vector<int>& ranks) {
    return collective_seconds(c, Collective::all_to_all, 1e9, place(c, ranks), {});
  };
  // Four of a ring of eight send half of what they have over the middle, by two links each way.
  CHECK(seconds({0, 1, 2, 3, 4, 5, 6, 7}) == Approx(4 * 0.5 / 2));
  CHECK(seconds({0, 8, 16, 24, 32, 40, 48, 56}) == Approx(4 * 0.5 / 2));
  CHECK(seconds({0, 1, 2, 3}) == Approx(2 * 0.5 / 1));  // a line
  // Every other device of a ring: two such groups share its links.
  CHECK(seconds({0, 2, 4, 6}) == Approx(2 * 0.5 / 2 * 2));
  // Thirty-two devices on a side, and eight rings through the middle.
  std::vector<int> all(64);
  for (int k = 0; k < 64; ++k) all[k] = k;
  CHECK(seconds(all) == Approx(32 * 0.5 / 16));
}

TEST_CASE("A cluster that lacks something is refused with its key") {
  Problems none;
  CHECK(read_cluster(cluster_table(), "cluster", none).devices() == 8);
  CHECK(none.empty());
  Json table = cluster_table();
  table["node"].erase("bandwidth");
  CHECK(cluster_refusal(table) == "cluster.value cluster.node.bandwidth");
  table = cluster_table();
  table.erase("network");
  CHECK(cluster_refusal(table) == "cluster.value cluster.network");
  table = cluster_table();
  table["network"]["nic"] = 0;
  CHECK(cluster_refusal(table) == "option.range cluster.network.nic");
  table = cluster_table();
  table["device"]["peek16"] = 1e14;
  CHECK(cluster_refusal(table) == "option.unknown cluster.device.peek16");
  table = cluster_table();
  table["torus"] = {{"shape", {2, 2}}, {"bandwidth", 1e9}};
  CHECK(cluster_refusal(table) == "cluster.value cluster.torus.shape");
  table = cluster_table();
  table["node"]["curves"] = {{{"ranks", 2}, {"points", {{1e6, 1e-4}, {1e8, 1e-3}}}}};
  CHECK(cluster_refusal(table) == "cluster.value cluster.node.curve_bandwidth");
  table["node"]["curve_bandwidth"] = 1e10;
  table["node"]["curves"][0]["op"] = "broadcast";
  CHECK(cluster_refusal(table) == "cluster.value cluster.node.curves[1].op");
  table["node"]["curves"][0]["op"] = "send";
  table["network"]["curves"] = table["node"]["curves"];
  CHECK_THAT(cluster_refusal(table),
             Catch::Contains("cluster.value cluster.network.curves[1].nodes"));
  table["network"]["curves"][0]["nodes"] = 2;
  CHECK(cluster_refusal(table) == "cluster.value cluster.network.curve_nic");
  table = cluster_table();
  table["slow"] = {{{"node", 2}, {"compute", 2}}};
  CHECK(cluster_refusal(table) == "cluster.value cluster.slow[1]");
  table["slow"] = {{{"node", {1, 0}}}};
  CHECK(cluster_refusal(table) == "cluster.value cluster.slow[1]");
  table["slow"] = {{{"node", 1}, {"device", 4}}};
  CHECK(cluster_refusal(table) == "cluster.value cluster.slow[1]");
  table["slow"] = {{{"node", 1}, {"compute", 0.5}}};
  CHECK(cluster_refusal(table) == "option.range cluster.slow[1].compute");
  table["slow"] = {{{"node", {0, 1}}, {"device", 3}, {"nic", 2}}};
  Problems fine;
  CHECK(read_cluster(table, "cluster", fine).slow.front().by.nic == 2);
  CHECK(fine.empty());
}

TEST_CASE("A device held to less power than its shares are of runs at a lower clock") {
  const auto device = [](double rated, double limit) {
    Json table = cluster_table();
    table["device"]["flash"] = {0.4};
    table["device"]["power"] = rated;
    if (limit > 0) table["device"]["power_limit"] = limit;
    Problems none;
    const Cluster c = read_cluster(table, "cluster", none);
    CHECK(none.empty());
    return c.device;
  };
  CHECK(device(800, 0).gemm == 0.8);
  CHECK(device(800, 900).gemm == 0.8);
  CHECK(device(800, 100).gemm == Approx(0.4));
  CHECK(device(800, 100).flash[1] == Approx(0.2));
  CHECK(device(800, 100).bandwidth_share == 0.8);
  Json table = cluster_table();
  table["device"]["power_limit"] = 500;
  CHECK(cluster_refusal(table) == "cluster.value cluster.device.power");
}

TEST_CASE("Ranks that have the same tokens may exchange a part each") {
  Cluster c = round_cluster(2);  // tp inside a node, ep over nodes
  c.node.latency = 0;
  c.node.bandwidth = 1e11;
  c.nodes = 2;
  c.network.nic = 1e7;
  c.network.share = 1;
  Setup setup = llama({dp(2), tp(2), ep(2)});
  setup.model = "moe";
  setup.options["experts"] = 8;
  setup.options["top_k"] = 2;
  const Experiment e = experiment(setup);
  // Seconds of each call on average, over and above what a call of nothing takes.
  const auto exchanges = [&](bool scattered) {
    Stack stack = round_stack();
    stack.scattered_exchanges = scattered;
    double seconds = 0;
    std::int64_t bytes = 0;
    for (const CommunicationForecast& each :
         predict(*e.plan, ClusterMachine(c, stack)).communication) {
      if (each.key.axis != "ep" || each.key.phase != "forward") continue;
      seconds += each.seconds;
      bytes += each.bytes;
    }
    CHECK(bytes > 0);
    return std::pair(seconds, static_cast<double>(bytes));
  };
  const auto [whole, sent] = exchanges(false);
  CHECK(whole == Approx(sent / 1e7).epsilon(0.01));
  CHECK(exchanges(true).first == Approx(whole / 2).epsilon(0.05));
  CHECK(exchanges(true).second == sent);  // the program's bytes are what they are
}

TEST_CASE("What a driver reports is the program's bytes and what is named beside them") {
  const Experiment e = experiment(llama({dp(2), tp(2)}));
  Cluster c = round_cluster();
  Stack stack = round_stack();
  const auto told = [&] { return predict(*e.plan, ClusterMachine(c, stack)); };
  CHECK(told().most_reported().beside.empty());
  CHECK_FALSE(told().to_json().contains("reported_bytes"));
  c.device.context = 1000;
  c.device.communicator = 100;
  stack.second_gradients = 2;
  stack.logit_memory = 8;
  stack.reserve = 0.2;
  const Prediction prediction = told();
  const StageForecast& most = prediction.most_reported();
  const std::int64_t peak = most.memory.peak, parameters = most.memory[Category::parameters] / 4;
  // 4 of 8 sequences of 32 tokens, and half of 128 words.
  const std::int64_t logits = 8LL * 4 * 32 * 64, gradients = 2 * parameters,
                     reserve = (peak + gradients + logits) / 4;
  std::map<std::string, std::int64_t> named;
  for (const NamedBytes& each : most.beside) named[each.name] = each.bytes;
  CHECK(named == std::map<std::string, std::int64_t>{{"gradients", gradients},
                                                     {"loss", logits},
                                                     {"reserve", reserve},
                                                     {"communicators", 300},
                                                     {"context", 1000}});
  CHECK(most.reported() == peak + gradients + logits + reserve + 1300);
  CHECK(told().to_json()["reported_bytes"] == most.reported());
  CHECK(told().to_json()["beside_program"]["loss"] == logits);
  // Limits are of the program's bytes alone.
  CHECK(told().memory_needed == peak);
}

TEST_CASE("A device has a communicator for each pair that sends, whatever the microbatches") {
  Cluster c = round_cluster();
  c.device.communicator = 100;
  for (const std::int64_t microbatch : {1, 8}) {
    Setup setup = llama({pp(4, "1f1b", {1, 1, 1, 1})}, microbatch);
    setup.options["layers"] = 4;
    const Experiment e = experiment(setup);
    // To and from each neighbour, and that of all ranks.
    const std::vector<std::int64_t> wanted = {300, 500, 500, 300};
    const Prediction prediction = predict(*e.plan, ClusterMachine(c, round_stack()));
    for (std::size_t s = 0; s < wanted.size(); ++s) {
      std::int64_t bytes = 0;
      for (const NamedBytes& each : prediction.stages.at(s).beside)
        if (each.name == "communicators") bytes = each.bytes;
      CHECK(bytes == wanted[s]);
    }
  }
}

TEST_CASE("What products read in fp8 may be narrowed before it is gathered") {
  Setup setup = llama({tp(2), sp()});
  const Experiment e = experiment(setup);
  Cluster c = round_cluster();
  c.device.peak8 = 2e11;
  c.node.latency = 0;
  const auto seconds = [&](bool narrow, const std::string& op) {
    Stack stack = round_stack();
    stack.product_bits = 8;
    stack.product_casts = 5;
    stack.narrow_gathers = narrow;
    const Prediction p = predict(*e.plan, ClusterMachine(c, stack));
    double all = op.empty() ? p.compute_seconds : 0;
    for (const CommunicationForecast& each : p.communication) {
      if (each.key.axis == "tp" && each.key.phase == "forward" && each.key.op == op)
        all += each.seconds;
    }
    return all;
  };
  // Numbers in fp32 take a quarter; sums are made as they are.
  CHECK(seconds(true, "all-gather") == Approx(seconds(false, "all-gather") / 4));
  CHECK(seconds(true, "reduce-scatter") == Approx(seconds(false, "reduce-scatter")));
  CHECK(seconds(true, "") < seconds(false, ""));
}

TEST_CASE("Libraries may reach another share of the peak than the device's") {
  const Experiment e = experiment(llama({dp(2)}));
  Cluster c = round_cluster();
  const auto seconds = [&](double products) {
    Stack stack = round_stack();
    stack.products = products;
    return predict(*e.plan, ClusterMachine(c, stack)).compute_seconds;
  };
  const double software = seconds(0.5);
  CHECK(software > seconds(1));
  c.device.gemm /= 2;
  CHECK(seconds(1) == Approx(software));
}

TEST_CASE("What the sequence's axes send goes beside or behind transfers of data axes") {
  const Experiment e = experiment(llama({zero_over_sequence(2, 1), sp(4, "ring")}));
  const auto seconds = [&](bool beside, double slowed) {
    Stack stack = round_stack();
    stack.sequence_beside = beside;
    stack.data_slowed = slowed;
    return predict(*e.plan, ClusterMachine(cluster_of_two(), stack)).step_seconds;
  };
  CHECK(seconds(true, 0) < seconds(false, 0));
  // State that is sharded over the sequence's ranks too is moved on data axes.
  CHECK(seconds(true, 0.9) > seconds(true, 0));
}

TEST_CASE("Gradients of a sharded update may be all-reduced") {
  const auto seconds = [](int zero_stage, bool whole) {
    const Experiment e = experiment(llama({zero(4, zero_stage)}));
    Stack stack = round_stack();
    stack.reduced_whole = whole;
    double all = 0;
    for (const CommunicationForecast& each :
         predict(*e.plan, ClusterMachine(round_cluster(), stack)).communication) {
      if (each.key.op == "reduce-scatter") all += each.seconds;
    }
    CHECK(all > 0);
    return all;
  };
  CHECK(seconds(1, true) == Approx(2 * seconds(1, false)));
  CHECK(seconds(2, true) == Approx(seconds(2, false)));
}

TEST_CASE("A plan that the cluster cannot hold is refused") {
  const Experiment e = experiment(llama({dp(4)}));
  Cluster small = round_cluster(2);
  small.device.peak32 = 0;
  Problems problems;
  check_placed(*e.plan, ClusterMachine(small, round_stack()), problems);
  CHECK(codes(problems) == "cluster.room cluster.nodes; cluster.rate cluster.device.peak32");
}

TEST_CASE("A precision that the devices have no units for is refused") {
  Setup setup = llama({dp(4)});
  setup.precision = Precision::bf16;
  const Experiment e = experiment(setup);
  Cluster cluster = round_cluster();
  const auto refused = [&] {
    Problems problems;
    check_placed(*e.plan, ClusterMachine(cluster, round_stack()), problems);
    return problems.empty() ? "" : codes(problems) + ": " + problems.list().front().hint;
  };
  CHECK(refused().empty());
  cluster.device.lacks = {Dtype::bf16};
  CHECK(refused() == "cluster.rate precision: nearest: precision = \"fp16\"");
  cluster.device.lacks = {Dtype::bf16, Dtype::fp16};
  CHECK(refused() == "cluster.rate precision: nearest: precision = \"fp32\"");
}

TEST_CASE("Times are told of a machine that could run the plan alone") {
  const Experiment e = experiment(llama({dp(4)}));
  CHECK(predict(*e.plan, round_machine()).timed());
  Device little = round_device();
  little.memory = 1 << 16;
  const Prediction p = predict(*e.plan, SharedCores(little));
  CHECK_FALSE(p.timed());
  const Json json = p.to_json();
  for (const char* key : {"step_seconds", "tokens_per_second", "mfu", "hfu", "priced_for"})
    CHECK_FALSE(json.contains(key));
  CHECK(json.contains("bubble_fraction"));
  CHECK_FALSE(json["communication"][0].contains("seconds"));
}

TEST_CASE("An axis that crosses nodes takes longer than one that does not") {
  Cluster c = cluster_of_two();
  c.node.latency = 1e-7;  // these tensors are small
  const auto gradients = [&](const std::vector<StrategyChoice>& plan) {
    const Experiment e = experiment(llama(plan));
    double seconds = 0;
    for (const CommunicationForecast& each :
         predict(*e.plan, ClusterMachine(c, round_stack())).communication) {
      if (each.key.axis == "tp" && each.key.phase == "forward") seconds += each.seconds;
    }
    return seconds;
  };
  CHECK(gradients({tp(4), dp(2)}) > 2 * gradients({dp(2), tp(4)}));
}
