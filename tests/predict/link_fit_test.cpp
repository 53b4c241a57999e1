// Links and steps of a made-up cluster are found again by what they make collectives and plans
// take.
#include "predict/link_fit.h"

#include <catch2/catch.hpp>

#include "clusters.h"
#include "predict/share_fit.h"

using namespace mw;

namespace {

Json described() {
  return {{"name", "base"},
          {"device",
           {{"name", "device"},
            {"peak16", 1e14},
            {"memory", 1 << 30},
            {"bandwidth", 1e12},
            {"bandwidth_share", 0.8},
            {"gemm", 0.7}}},
          {"node", {{"devices", 4}, {"bandwidth", 2e11}, {"share", 0.7}, {"latency", 5e-6}}},
          {"network", {{"nic", 2e10}, {"share", 0.9}, {"latency", 15e-6}, {"hop", 6e-6}}}};
}

Cluster read(const Json& table) {
  Problems problems;
  Cluster cluster = read_cluster(table, "cluster", problems);
  REQUIRE(problems.empty());
  cluster.nodes = 8;
  return cluster;
}

LoggedTable logged(const Cluster& cluster, Collective op, int nodes, int of_node) {
  LoggedTable table;
  table.file = "log";
  table.op = op;
  for (int r = 0; r < nodes * of_node; ++r) table.node.push_back(r / of_node);
  for (double bytes = 1 << 10; bytes < 2e9; bytes *= 2)
    table.rows.push_back({bytes, logged_seconds(cluster, table, bytes), 1});
  return table;
}

}  // namespace

TEST_CASE("links that were measured are found again, and rows come out as they were") {
  Json truth = described();
  truth["node"]["share"] = 0.55;
  truth["network"] = {{"nic", 2e10}, {"share", 0.62}, {"latency", 40e-6}, {"hop", 2e-6}};
  const Cluster real = read(truth);
  std::vector<LoggedTable> tables;
  for (const int of_node : {2, 4})
    tables.push_back(logged(real, Collective::all_reduce, 1, of_node));
  tables.push_back(logged(real, Collective::all_to_all, 1, 4));
  for (const int nodes : {2, 4, 8})
    tables.push_back(logged(real, Collective::all_reduce, nodes, 4));
  tables.push_back(logged(real, Collective::all_gather, 4, 4));
  Description made;
  made.table = described();
  made.base = "base";
  Problems problems;
  fit_links(made, tables, 0, problems);
  REQUIRE(problems.empty());
  CHECK(made.table["node"]["devices"] == 4);
  CHECK(made.table["node"]["curves"].size() == 3);
  CHECK(made.table["network"]["curves"].size() == 4);
  CHECK(made.table["node"]["share"].get<double>() == Approx(0.55).epsilon(0.01));
  CHECK(made.table["network"]["share"].get<double>() == Approx(0.62).epsilon(0.01));
  CHECK(made.table["device"] == described()["device"]);
  // By what was measured to the digits that are kept, and by the shares that others are priced by.
  const Cluster measured = read(made.table);
  for (const LoggedTable& table : tables) {
    for (const LoggedRow& row : table.rows)
      CHECK(logged_seconds(measured, table, row.bytes) == Approx(row.seconds).epsilon(1e-4));
  }
  made.table["network"].erase("curves");
  Json rings = Json::array();
  for (const Json& curve : made.table["node"]["curves"])
    if (curve["op"] == "all-reduce") rings.push_back(curve);
  made.table["node"]["curves"] = rings;
  const Cluster again = read(made.table);
  for (const LoggedTable& table : tables) {
    for (const LoggedRow& row : table.rows) {
      INFO(table.perf() << " " << table.place() << " " << row.bytes);
      if (row.bytes >= 64 << 10)
        CHECK(logged_seconds(again, table, row.bytes) == Approx(row.seconds).epsilon(0.01));
    }
  }
}

TEST_CASE("halves of an all-reduce stand for it, and links faster than the base's raise its rate") {
  Json truth = described();
  truth["node"]["bandwidth"] = 6e11;
  truth["network"]["nic"] = 6e10;
  const Cluster real = read(truth);
  Description made;
  made.table = described();
  Problems problems;
  const auto half = logged(real, Collective::reduce_scatter, 1, 4);
  const auto over = logged(real, Collective::all_reduce, 4, 4);
  fit_links(made, {half, over}, 0, problems);
  REQUIRE(problems.empty());
  const Json& curve = made.table["node"]["curves"][0];
  CHECK(curve["op"] == "reduce-scatter");
  CHECK(curve["points"].back()[1].get<double>() == Approx(half.rows.back().seconds).epsilon(1e-3));
  const auto whole = logged(real, Collective::all_reduce, 1, 4);
  CHECK(logged_seconds(read(made.table), whole, 1 << 20) ==
        Approx(2 * logged_seconds(real, half, 1 << 20)).epsilon(1e-3));
  CHECK(is_curve(half, 4));
  CHECK(is_curve(over, 4));
  CHECK_FALSE(is_curve(logged(real, Collective::all_reduce, 2, 2), 4));
  CHECK(made.table["network"]["share"] == 1);
  CHECK(made.table["network"]["nic"].get<double>() == Approx(0.9 * 6e10).epsilon(0.02));
}

TEST_CASE("all-reduces over two nodes, however fast, raise no NIC; other collectives there do") {
  Json truth = described();
  truth["network"]["nic"] = 6e10;
  const Cluster real = read(truth);
  const auto sums = logged(real, Collective::all_reduce, 2, 4);
  const auto gathers = logged(real, Collective::all_gather, 2, 4);
  for (const bool both : {false, true}) {
    Description made;
    made.table = described();
    Problems problems;
    fit_links(made, both ? std::vector{sums, gathers} : std::vector{sums}, 0, problems);
    REQUIRE(problems.empty());
    const double reached =
        made.table["network"]["nic"].get<double>() * made.table["network"]["share"].get<double>();
    INFO(reached);
    if (both)
      CHECK(reached == Approx(0.9 * 6e10).epsilon(0.02));
    else
      CHECK((made.table["network"]["nic"] == 2e10 && reached <= 2e10));
  }
}

TEST_CASE("what was not measured stays, and is said") {
  const Cluster real = read(described());
  Description made;
  made.table = described();
  made.base = "base";
  Problems problems;
  fit_links(made, {logged(real, Collective::all_reduce, 1, 2)}, 4, problems);
  CHECK(made.table["network"] == described()["network"]);
  REQUIRE(made.unknown.size() == 3);  // larger groups, sends, the network
  // Two devices of each node had the NICs of four.
  Description part;
  part.table = described();
  fit_links(part, {logged(real, Collective::all_reduce, 2, 2)}, 4, problems);
  CHECK(part.table["network"] == described()["network"]);
  CHECK(problems.empty());
  fit_links(part, {logged(real, Collective::all_reduce, 1, 4)}, 2, problems);
  REQUIRE(problems.list().size() == 1);
  CHECK(problems.list()[0].code == "calibration.devices");
  part.table.erase("network");
  fit_links(part, {logged(real, Collective::all_reduce, 2, 4)}, 0, problems);
  CHECK(problems.list().back().code == "calibration.base");
}

TEST_CASE("a few rows change the shares that they depend on, and no others") {
  // Two rows of a sum of two terms, and a third share of which neither tells.
  const std::vector<Share> shares = {{"a", 1, 0.1, 10}, {"b", 1, 0.1, 10}, {"c", 1, 0.1, 10}};
  const PredictRows predict = [](const std::vector<double>& v) {
    return std::vector<double>{10 * v[0] + v[1], v[0] + 10 * v[1]};
  };
  const FittedShares fit = fit_shares(shares, predict({1.2, 0.9, 1}), predict, 0.02, 0.2);
  CHECK(fit.values[0] == Approx(1.2).epsilon(0.01));
  CHECK(fit.values[1] == Approx(0.9).epsilon(0.01));
  CHECK(fit.values[2] == 1);
  CHECK(fit.told == std::vector<bool>{true, true, false});
  REQUIRE(fit.left_out.size() == 2);
  // A row that counts for nothing is predicted by the other alone.
  CHECK(std::abs(fit.left_out[0] / predict({1.2, 0.9, 1})[0] - 1) > 0.05);
  // Bounds hold.
  const FittedShares bound = fit_shares(
      {{"a", 1, 0.9, 1}}, {20}, [](const auto& v) { return std::vector{10 * v[0]}; }, 0.02, 0.2);
  CHECK(bound.values[0] == Approx(1));
}
