// Fits a cluster's links: curves are taken as they were measured; shares and latencies, for groups
// that nobody measured, are those with which the rows come out best.
#include "predict/link_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <tuple>

#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "predict/network.h"
#include "predict/share_fit.h"

namespace mw {
namespace {

using Tables = std::vector<const LoggedTable*>;

constexpr double rate_size = 1 << 20;      // bytes of a row by which a rate is fitted
constexpr double latency_size = 64 << 10;  // least bytes of a row by which latencies are fitted
constexpr double row_error = 0.02;         // of a measured row, as the fit weighs it
constexpr double free_change = 3;          // of a logarithm: what the base says hardly counts

std::string listed(const Tables& tables) {
  std::vector<std::string> all;
  for (const LoggedTable* table : tables)
    all.push_back(fmt::format("{} among {} ({}:{}, {})", table->perf(), table->place(), table->file,
                              table->line, plural(std::ssize(table->rows), "size")));
  return join(all);
}

// Bytes a second through a device's link, as nccl-tests count them.
double bus_bandwidth(const LoggedTable& table, const LoggedRow& row) {
  return bus_share(table.op, table.ranks()) * row.bytes / row.seconds;
}

double mean_error(const std::vector<double>& predicted, const std::vector<double>& measured) {
  double sum = 0;
  for (std::size_t r = 0; r < measured.size(); ++r)
    sum += std::abs(predicted[r] / measured[r] - 1) / static_cast<double>(measured.size());
  return sum;
}

class LinkFit {
 public:
  LinkFit(Description& description, const std::vector<LoggedTable>& tables, int devices,
          Problems& problems)
      : made_(description), tables_(tables), devices_(devices), problems_(problems) {}

  void run() {
    if (tables_.empty()) {
      if (devices_ > 0) made_.table["node"]["devices"] = devices_;
      return;
    }
    if (!has_place()) return;
    made_.table["node"]["devices"] = devices_;
    forget_curves();
    add_curves("node", is_ring);
    measured_on("node", "bandwidth", "curve_bandwidth");
    node_share();
    measured_on("node", "bandwidth", "curve_bandwidth");
    network();
    // Curves hide the shares, which the sends and exchanges were needed to find.
    add_curves("node", [](const LoggedTable& t) { return t.nodes() == 1 && !is_ring(t); });
    measured_on("node", "bandwidth", "curve_bandwidth");
    if (those([&](const LoggedTable& t) { return t.nodes() > 1 && is_curve(t, devices_); }).empty())
      return;
    add_curves("network", [](const LoggedTable& t) { return t.nodes() > 1; });
    measured_on("network", "nic", "curve_nic");
  }

 private:
  Tables those(const std::function<bool(const LoggedTable&)>& wanted) const {
    Tables found;
    for (const LoggedTable& table : tables_) {
      if (wanted(table)) found.push_back(&table);
    }
    return found;
  }

  void refuse(const char* code, const std::string& message, const std::string& hint) {
    problems_.add(Stage::options, code, "--cluster", message, hint);
  }

  bool has_place() {
    int most = 1, nodes = 1;
    for (const LoggedTable& table : tables_) {
      most = std::max(most, table.most_of_node());
      nodes = std::max(nodes, table.nodes());
    }
    if (devices_ == 0) {
      devices_ = most;
      const int base = made_.table["node"].value("devices", most);
      if (base > most) {
        made_.unknown.push_back(fmt::format(
            "a node is taken to have {} devices, the most that a log has on one; {} has "
            "{}: if yours does too, say --devices {}",
            most, made_.base, base, base));
      }
    }
    if (devices_ < most) {
      problems_.add(Stage::options, "calibration.devices", "--devices",
                    fmt::format("--devices {}, and a log has {} ranks on one node", devices_, most),
                    fmt::format("--devices {}, or leave it out", most));
      return false;
    }
    if (made_.table.contains("torus")) {
      refuse("calibration.base",
             fmt::format("{} is a torus, which has no nodes and no network", made_.base),
             "name a cluster of nodes with --cluster, for example dgx-h100");
      return false;
    }
    if (nodes > 1 && !made_.table.contains("network")) {
      refuse("calibration.base",
             fmt::format("{} has no network, and a log is of {} nodes", made_.base, nodes),
             "name one with --cluster that has: network = { nic = 50e9 }, a device's share of "
             "its node's NICs");
      return false;
    }
    return true;
  }

  Cluster cluster() { return logged_cluster(made_, tables_, problems_); }

  // Rows become curves as they were measured, the mean where several tables have a size.
  void add_curves(const char* part, const std::function<bool(const LoggedTable&)>& wanted) {
    std::map<std::tuple<Collective, int, int>, Tables> same_place;
    for (const LoggedTable* table :
         those([&](const LoggedTable& t) { return is_curve(t, devices_) && wanted(t); }))
      same_place[{table->op, table->nodes(), table->ranks()}].push_back(table);
    if (same_place.empty()) return;
    Json& all = made_.table[part]["curves"];
    for (const auto& [place, of] : same_place) {
      const auto& [op, nodes, ranks] = place;
      std::vector<LoggedRow> rows;
      for (const LoggedTable* table : of)
        rows.insert(rows.end(), table->rows.begin(), table->rows.end());
      Json points = Json::array();
      for (const LoggedRow& row : means(rows)) points.push_back({row.bytes, rounded(row.seconds)});
      Json curve = {{"op", name_of(op)}};
      if (nodes > 1) curve["nodes"] = nodes;
      curve.update({{"ranks", ranks}, {"points", points}});
      all.push_back(std::move(curve));
      made_.sources[fmt::format("{}.curves[{}]", part, all.size())] = listed(of);
    }
  }

  // All-reduces inside a node and their halves, which say the same of its links.
  static bool is_ring(const LoggedTable& table) {
    return table.nodes() == 1 && table.op != Collective::all_to_all && table.op != Collective::send;
  }

  // What was measured takes the place of the base's curves. Those that stay were measured on other
  // links, and are written as they are priced on these.
  void forget_curves() {
    Json& node = made_.table["node"];
    std::set<std::string> measured;
    int most = 0;     // ranks of a ring
    double rate = 0;  // bytes a second of a device
    for (const LoggedTable* table : those([](const LoggedTable& t) { return t.nodes() == 1; })) {
      measured.insert(name_of(table->op));
      if (is_ring(*table)) most = std::max(most, table->ranks());
      for (const LoggedRow& row : table->rows) rate = std::max(rate, bus_bandwidth(*table, row));
    }
    if (rate > 0 && !node.contains("bandwidth")) node["bandwidth"] = rounded(rate);
    const double scale = cluster().node.curve_scale();
    Json kept = Json::array();
    for (Json curve : node.value("curves", Json::array())) {
      const std::string op = curve.value("op", name_of(Collective::all_reduce));
      const bool other = op == name_of(Collective::all_to_all) || op == name_of(Collective::send);
      if (other ? measured.contains(op) : most > 0) continue;
      if (scale != 1) {
        for (Json& point : curve["points"]) point[0] = rounded(scale * point[0].get<double>());
      }
      kept.push_back(std::move(curve));
    }
    if (node.contains("curves")) node["curves"] = std::move(kept);
    if (most == 0) {
      made_.unknown.push_back(fmt::format(
          "no all-reduce inside a node was measured: node.curves stay those of {}", made_.base));
    } else if (most < devices_) {
      made_.unknown.push_back(fmt::format(
          "the largest group measured inside a node has {} of {} devices: larger ones are priced "
          "by the bus bandwidth of that",
          most, devices_));
    }
    const Tables over =
        those([&](const LoggedTable& t) { return t.nodes() > 1 && is_curve(t, devices_); });
    if (!over.empty()) made_.table["network"].erase("curves");
    measured_on("node", "bandwidth", "curve_bandwidth");
  }

  // The curves say what these links do, whatever rate the description comes to give them.
  void measured_on(const char* part, const char* rate, const char* of) {
    Json& table = made_.table[part];
    if (table.contains(rate) && !table.value("curves", Json::array()).empty())
      table[of] = table[rate];
  }

  // Sets a rate of the data sheet and the share of it that is reached, of which no more than all
  // makes sense.
  void set_share(const char* part, const char* rate, double share, const std::string& source) {
    Json& table = made_.table[part];
    made_.sources[fmt::format("{}.share", part)] = source;
    if (share > 1) {
      table[rate] = rounded(table.value(rate, 0.0) * share);
      made_.sources[fmt::format("{}.{}", part, rate)] =
          fmt::format("more than {} has is reached: what is reached", made_.base);
      share = 1;
    }
    table["share"] = rounded(share);
  }

  // What sends, exchanges and rings over nodes reach of a device's link.
  void node_share() {
    const auto inside = [](const LoggedTable& t) { return t.nodes() == 1; };
    const Tables sends = those([&](const LoggedTable& t) {
      return inside(t) && (t.op == Collective::all_to_all || t.op == Collective::send);
    });
    Tables halves = those([&](const LoggedTable& t) {
      return inside(t) && (t.op == Collective::all_gather || t.op == Collective::reduce_scatter);
    });
    if (sends.empty() && halves.empty()) halves = those(inside);
    if (sends.empty() && halves.empty()) return;
    Json& node = made_.table["node"];
    if (!sends.empty()) {
      Cluster read = cluster();
      const auto [fit, error] =
          fitted(read, sends, rate_size, {{"node.share", read.node.share, 1e-4, 100}});
      set_share("node", "bandwidth", fit.values.front(), fitted_text(sends, rate_size, error));
      return;
    }
    const auto largest = *std::max_element(halves.begin(), halves.end(),
                                           [](auto a, auto b) { return a->ranks() < b->ranks(); });
    const LoggedRow& row = largest->rows.back();
    const double bus = bus_bandwidth(*largest, row);
    // Switches that add up reach more than links have.
    const double share = std::min(bus / node["bandwidth"].get<double>(), 1.0);
    set_share("node", "bandwidth", share,
              fmt::format("bus bandwidth of {} of {}, {}:{}", largest->perf(),
                          format_bytes(row.bytes), largest->file, row.line));
    made_.unknown.push_back(
        "no all-to-all and no send inside a node was measured: node.share is the bus bandwidth of "
        "the largest " +
        largest->perf());
  }

  void network() {
    const Tables over = those([](const LoggedTable& t) { return t.nodes() > 1; });
    if (over.empty()) {
      made_.unknown.push_back(
          made_.table.contains("network")
              ? fmt::format("only one node was measured: the network stays that of {}", made_.base)
              : fmt::format("only one node was measured, and {} has no network: plans of several "
                            "nodes are refused until the file has one",
                            made_.base));
      return;
    }
    const Tables whole =
        those([&](const LoggedTable& t) { return t.nodes() > 1 && is_curve(t, devices_); });
    if (whole.size() < over.size()) {
      made_.unknown.push_back(fmt::format(
          "{} over nodes {} not all {} devices of each, so each device had a larger share of the "
          "NICs: such tables are only compared",
          plural(std::ssize(over) - std::ssize(whole), "table"),
          over.size() - whole.size() == 1 ? "has" : "have", devices_));
    }
    if (whole.empty()) {
      made_.unknown.push_back(fmt::format(
          "no log has all {} devices of several nodes: the network stays that of {}; where nodes "
          "have fewer devices, say so by --devices",
          devices_, made_.base));
      return;
    }
    int most = 0;
    for (const LoggedTable* table : whole) most = std::max(most, table->nodes());
    if (most == 2) {
      fit_two_nodes(whole);
    } else {
      fit_network(whole, 100);
    }
    made_.unknown.push_back(fmt::format(
        "at most {} were measured together: what more of them share (network.oversubscription, "
        "network.pod) stays that of {}",
        plural(most, "node"), made_.base));
  }

  // NCCL's tree sends each byte of an all-reduce over two nodes once, a ring nearly twice. So
  // rows of all-reduces can be faster than the NICs let a ring be, and prove no faster NICs. The
  // NICs are fitted to other collectives, where there are any.
  void fit_two_nodes(const Tables& whole) {
    Tables others;
    for (const LoggedTable* table : whole)
      if (table->op != Collective::all_reduce) others.push_back(table);
    if (!others.empty()) {
      fit_network(others, 100);
      if (others.size() < whole.size()) {
        made_.unknown.push_back(
            "all-reduces over two nodes can be up to twice as fast as over more, because NCCL's "
            "tree sends each byte once between two nodes: more nodes are not priced by them");
      }
      return;
    }
    fit_network(whole, 1);
    double bus = 0;  // the highest bytes a second of a device that a ring would need
    for (const LoggedTable* table : whole)
      for (const LoggedRow& row : table->rows)
        bus = std::max(bus, bus_bandwidth(*table, row) / devices_);
    const double nic = made_.table["network"].value("nic", 0.0);
    made_.unknown.push_back(fmt::format(
        "all-reduces over two nodes can be up to twice as fast as over more, as NCCL's tree sends "
        "each byte once there{}: measure all_gather_perf, or four nodes, or with NCCL_ALGO=Ring, "
        "before plans of more are believed",
        bus <= nic ? ""
                   : fmt::format(" (here up to {:.3g} GB/s a device by bus bandwidth, and its NICs "
                                 "stay the {:.3g} GB/s of {})",
                                 1e-9 * bus, 1e-9 * nic, made_.base)));
  }

  // `most` is the upper bound of network.share, unless the base has a larger one.
  void fit_network(const Tables& whole, double most) {
    Cluster read = cluster();
    most = std::max(most, read.network.share);
    const std::vector<Share> base = {{"network.share", read.network.share, 1e-4, most},
                                     {"network.hop", read.network.hop, 1e-8, 1e-2},
                                     {"network.latency", read.network.latency, 1e-7, 1e-1}};
    FittedShares best;
    double least = INFINITY;
    // Rings and hierarchies change places as these change: more than one start finds the best.
    for (const double start : {1.0, 0.25, 4.0}) {
      std::vector<Share> shares = base;
      for (std::size_t k = 1; k < shares.size(); ++k)
        shares[k].value = start * std::max(shares[k].value, 1e-6);
      auto [fit, error] = fitted(read, whole, latency_size, shares);
      if (!best.values.empty() && !(error < least)) continue;
      least = error;
      best = std::move(fit);
    }
    set_share("network", "nic", best.values[0], fitted_text(whole, latency_size, least));
    made_.unknown.push_back(fmt::format(
        "groups of other nodes or devices than those of the logs are priced by network.share, hop "
        "and latency, which miss the measured rows of {} and more by {:.1f} % on average",
        format_bytes(latency_size), 100 * least));
    for (std::size_t k = 1; k < base.size(); ++k) {
      const std::string key = base[k].key.substr(base[k].key.find('.') + 1);
      if (best.told[k]) {
        made_.table["network"][key] = rounded(best.values[k]);
        made_.sources[base[k].key] = "fitted with network.share";
      } else {
        made_.unknown.push_back(
            fmt::format("no row tells of {}: it stays that of {}", base[k].key, made_.base));
      }
    }
  }

  static std::string fitted_text(const Tables& tables, double least, double error) {
    return fmt::format("fitted to rows of {} and more, off by {:.1f} % on average: {}",
                       format_bytes(least), 100 * error, listed(tables));
  }

  static void set(Cluster& cluster, const std::string& key, double value) {
    if (key == "node.share") cluster.node.share = value;
    if (key == "network.share") cluster.network.share = value;
    if (key == "network.hop") cluster.network.hop = value;
    if (key == "network.latency") cluster.network.latency = value;
  }

  // The shares with which the rows come out best, and the mean error of these.
  static std::pair<FittedShares, double> fitted(Cluster cluster, const Tables& tables, double least,
                                                const std::vector<Share>& shares) {
    std::vector<double> measured;
    for (const LoggedTable* table : tables)
      for (const LoggedRow& row : table->rows)
        if (row.bytes >= least) measured.push_back(row.seconds);
    const FittedShares fit = fit_shares(
        shares, measured,
        [&](const std::vector<double>& values) {
          for (std::size_t k = 0; k < shares.size(); ++k) set(cluster, shares[k].key, values[k]);
          std::vector<double> predicted;
          for (const LoggedTable* table : tables)
            for (const LoggedRow& row : table->rows)
              if (row.bytes >= least)
                predicted.push_back(logged_seconds(cluster, *table, row.bytes));
          return predicted;
        },
        row_error, free_change);
    const double error = mean_error(fit.predicted, measured);
    return {fit, error};
  }

  Description& made_;
  const std::vector<LoggedTable>& tables_;
  int devices_;
  Problems& problems_;
};

}  // namespace

void fit_links(Description& description, const std::vector<LoggedTable>& tables, int devices,
               Problems& problems) {
  LinkFit(description, tables, devices, problems).run();
}

bool is_curve(const LoggedTable& table, int devices) {
  return table.nodes() == 1 || table.whole_nodes(devices);
}

double rounded(double value) {
  return std::stod(fmt::format("{:.5g}", value));
}

Cluster logged_cluster(const Description& description, const std::vector<LoggedTable>& tables,
                       Problems& problems) {
  Cluster cluster = read_cluster(description.table, "cluster", problems);
  for (const LoggedTable& table : tables) cluster.nodes = std::max(cluster.nodes, table.nodes());
  cluster.node.curve_share = 1;
  return cluster;
}

double logged_seconds(const Cluster& cluster, const LoggedTable& table, double bytes) {
  std::vector<int> ranks, used(static_cast<std::size_t>(table.nodes()), 0);
  for (const int node : table.node)
    ranks.push_back(node * cluster.node.devices + used[static_cast<std::size_t>(node)]++);
  if (table.op != Collective::send) {
    std::sort(ranks.begin(), ranks.end());
    return collective_seconds(cluster, table.op, bytes, place(cluster, ranks), {});
  }
  double slowest = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    slowest =
        std::max(slowest, send_seconds(cluster, bytes, ranks[r], ranks[(r + 1) % ranks.size()]));
  return slowest;
}

}  // namespace mw
