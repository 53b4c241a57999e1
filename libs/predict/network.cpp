// Prices collectives: by measured curves inside a node, by rings and hierarchies over the NICs that
// all groups of a node share, and by the links of a torus.
#include "predict/network.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

namespace mw {
namespace {

// Seconds of a collective of 0 bytes inside a node, towards which measured curves go below their
// first point.
constexpr double least_seconds = 20e-6;

// The time of a collective inside a node by measured curves; nothing where none applies.
std::optional<CurveTime> measured_in_node(const NodeLinks& node, Collective op, double bytes,
                                          int ranks) {
  auto time = curve_time(node.curves, op, bytes / node.curve_scale(), ranks, 1, least_seconds);
  if (time) time->seconds /= node.curve_share;
  return time;
}

// Seconds of an all-reduce among `ranks` devices of a node.
double node_all_reduce(const NodeLinks& node, double bytes, int ranks) {
  if (ranks <= 1 || bytes <= 0) return 0;
  if (const auto measured = measured_in_node(node, Collective::all_reduce, bytes, ranks))
    return measured->seconds;
  return 2.0 * (ranks - 1) / ranks * bytes / (node.bandwidth * node.share) +
         2.0 * (ranks - 1) * node.latency;
}

// A device's bandwidth of its node's NICs, before the share of it that is achieved.
double nic_rate(const Network& network, const RankPlacement& where, const Library& library) {
  return network.nic * library.nics / (where.one_pod ? 1 : network.oversubscription);
}

double nic(const Network& network, const RankPlacement& where, const Library& library) {
  const bool partial = where.in_node > 1 && where.in_node < where.of_node;
  return nic_rate(network, where, library) * network.share * (partial ? network.partial : 1);
}

// Seconds of an all-reduce among ranks of several nodes. All groups of a node run at once, so a
// group with g ranks in a node has the NICs' share of g devices.
double network_all_reduce(const Cluster& cluster, double bytes, const RankPlacement& where,
                          const Library& library, bool hierarchical) {
  const Network& network = cluster.network;
  const double own = nic(network, where, library);
  const double g = where.in_node, n = where.ranks, nodes = std::max(n / g, 2.0);
  double through = own * g;
  if (g > 1)
    through =
        std::min(through, cluster.node.bandwidth * cluster.node.share * cluster.node.curve_share);
  const double ring = 2 * (n - 1) / n * bytes / through + 2 * (n - 1) * network.hop;
  if (!hierarchical) return ring;
  const double tree = node_all_reduce(cluster.node, bytes, where.in_node) +
                      2 * (nodes - 1) / nodes * (bytes / g) / own +
                      2 * std::log2(nodes) * network.latency + least_seconds;
  return std::min(ring, tree);
}

double torus_all_reduce(const Torus& torus, double bytes, const RankPlacement& where) {
  const double n = where.ranks;
  return 2 * (n - 1) / n * bytes / (torus.bandwidth * torus.share * where.torus_links) +
         2 * std::log2(n) * torus.latency;
}

// Sets how many of a device's links the ranks use, of which other groups on the same ring take
// parts, and the load of an all-to-all on the links in the middle: half of what each rank on one
// side has goes to the other side, by one link in a line and by two in a ring.
void place_on_torus(const std::vector<int>& shape, const std::vector<int>& ranks,
                    RankPlacement& where) {
  double& links = where.torus_links;
  std::int64_t inner = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    std::set<int> at;
    for (const int rank : ranks) at.insert(static_cast<int>(rank / inner % shape[d]));
    const auto used = static_cast<int>(at.size());
    if (used > 1) {
      const int step = *std::next(at.begin()) - *at.begin();
      // A whole ring carries both ways round; a piece of a ring is a line.
      const bool ring = used * step == shape[d];
      const double own = (ring ? 2.0 : 1.0) / step;
      links += own;
      where.torus_load = std::max(where.torus_load, used / 4.0 / own);
      where.torus_hops += ring ? shape[d] / 2 : (used - 1) * step;
    }
    inner *= shape[d];
  }
  links = std::max(links, 0.5);
}

}  // namespace

RankPlacement place(const Cluster& cluster, const std::vector<int>& ranks) {
  RankPlacement where;
  where.ranks = static_cast<int>(ranks.size());
  where.of_node = cluster.node.devices;
  if (!cluster.torus.shape.empty()) {
    place_on_torus(cluster.torus.shape, ranks, where);
    return where;
  }
  int node = -1, here = 0, pod = -1;
  where.nodes = 0;
  for (const int rank : ranks) {
    const int its = rank / cluster.node.devices;
    if (its != node) {
      node = its;
      here = 0;
      ++where.nodes;
      const int its_pod = cluster.network.pod > 0 ? node / cluster.network.pod : 0;
      where.one_pod = where.one_pod && (pod < 0 || pod == its_pod);
      pod = its_pod;
    }
    where.in_node = std::max(where.in_node, ++here);
  }
  return where;
}

namespace {

// Seconds of a collective by the rates and latencies of links, and inside a node by the curves of
// all-reduces.
double described_seconds(const Cluster& cluster, Collective op, double bytes,
                         const RankPlacement& where, const Library& library) {
  const bool torus = where.torus_links > 0;
  const double n = where.ranks;
  if (op == Collective::all_to_all) {
    if (torus) {
      return bytes * where.torus_load / (cluster.torus.bandwidth * cluster.torus.share) +
             cluster.torus.latency * where.torus_hops;
    }
    const double inside = bytes * (where.in_node - 1) / n,
                 outside = bytes * (n - where.in_node) / n;
    double seconds = least_seconds;
    if (inside > 0) seconds += inside / (cluster.node.bandwidth * cluster.node.share);
    if (where.nodes == 1) return seconds;
    return std::max(seconds,
                    outside / nic(cluster.network, where, library) + cluster.network.latency);
  }
  const bool whole = op == Collective::all_reduce;
  double seconds = 0;
  if (torus) {
    seconds = torus_all_reduce(cluster.torus, bytes, where);
  } else if (where.nodes == 1) {
    seconds = node_all_reduce(cluster.node, bytes, where.ranks);
  } else {
    seconds = network_all_reduce(cluster, bytes, where, library, whole || library.hierarchical);
  }
  // An all-gather or a reduce-scatter is one of the two halves of an all-reduce.
  return whole ? seconds : seconds / 2;
}

// How many times faster a group's NICs are than the NICs that the curves were measured on.
double nic_scale(const Network& network, const RankPlacement& where, const Library& library) {
  return nic_rate(network, where, library) / network.curve_nic;
}

std::optional<CurveTime> measured_time(const Cluster& cluster, Collective op, double bytes,
                                       const RankPlacement& where, const Library& library) {
  if (where.torus_links > 0 || bytes <= 0) return std::nullopt;
  if (where.nodes == 1) return measured_in_node(cluster.node, op, bytes, where.ranks);
  const Network& network = cluster.network;
  if (network.curves.empty() || where.in_node * where.nodes != where.ranks) return std::nullopt;
  return curve_time(network.curves, op, bytes / nic_scale(network, where, library), where.ranks,
                    where.nodes, described_seconds(cluster, op, 0, where, library));
}

}  // namespace

double collective_seconds(const Cluster& cluster, Collective op, double bytes,
                          const RankPlacement& where, const Library& library) {
  if (where.ranks <= 1) return 0;
  if (const auto measured = measured_time(cluster, op, bytes, where, library))
    return measured->seconds;
  double seconds = described_seconds(cluster, op, bytes, where, library);
  if (where.torus_links > 0 || where.nodes == 1) return seconds;
  // Curves of other numbers of nodes bound the time: more nodes are not faster than fewer that were
  // measured, and fewer are not slower than more.
  const double least = described_seconds(cluster, op, 0, where, library);
  for (const CollectiveCurve& curve : cluster.network.curves) {
    if (curve.op != op || curve.ranks != where.in_node * curve.nodes) continue;
    const double bound = curve.seconds(bytes / nic_scale(cluster.network, where, library), least);
    seconds = curve.nodes < where.nodes ? std::max(seconds, bound) : std::min(seconds, bound);
  }
  return seconds;
}

Basis link_basis(const Cluster& cluster, bool crosses) {
  const bool changed = cluster.changes("node.") ||
                       (crosses && (cluster.changes("network.") || cluster.changes("torus.")));
  return cluster.device.fitted && !changed ? Basis::fitted : Basis::beyond;
}

Basis collective_basis(const Cluster& cluster, Collective op, double bytes,
                       const RankPlacement& where, const Library& library) {
  if (where.ranks <= 1 || bytes <= 0) return Basis::measured;
  const bool inside = where.torus_links == 0 && where.nodes == 1;
  const auto measured = measured_time(cluster, op, bytes, where, library);
  if (!measured) return link_basis(cluster, !inside);
  const double scale =
      inside ? cluster.node.curve_scale() : nic_scale(cluster.network, where, library);
  if (scale != 1 || !measured->among_ranks) return Basis::beyond;
  return measured->same_op ? Basis::measured : Basis::fitted;
}

double exchange_seconds(const Cluster& cluster, double bytes, const RankPlacement& where,
                        const Library& library, const RowExchange& rows) {
  const double nodes = where.nodes;
  if (!rows.by_node || where.torus_links > 0 || nodes < 2 || rows.copies <= 1)
    return collective_seconds(cluster, Collective::all_to_all, bytes, where, library);
  // How many nodes a row's copies reach, if each copy goes to any rank alike.
  double reached = nodes * (1 - std::pow(1 - 1 / nodes, rows.copies));
  if (rows.most_nodes > 0) reached = std::min(reached, static_cast<double>(rows.most_nodes));
  const double outside = bytes * reached / rows.copies * (nodes - 1) / nodes;
  const double inside = bytes * (where.in_node - 1) / where.in_node;
  return least_seconds + std::max(outside / nic(cluster.network, where, library),
                                  inside / (cluster.node.bandwidth * cluster.node.share));
}

double send_seconds(const Cluster& cluster, double bytes, int from, int to) {
  constexpr double call = 10e-6;
  if (!cluster.torus.shape.empty()) {
    return bytes / (cluster.torus.bandwidth * cluster.torus.share) + cluster.torus.latency + call;
  }
  if (from / cluster.node.devices == to / cluster.node.devices) {
    // The curve of a ring is taken, as if all devices of the node sent at once.
    const auto measured =
        measured_in_node(cluster.node, Collective::send, bytes, cluster.node.devices);
    return measured ? measured->seconds
                    : bytes / (cluster.node.bandwidth * cluster.node.share) + 2 * call;
  }
  const Network& network = cluster.network;
  const double latency = network.latency + call;
  // However many nodes a ring has, the sends from node to node take the longest.
  for (const CollectiveCurve& curve : network.curves) {
    if (curve.op == Collective::send)
      return curve.seconds(bytes * network.curve_nic / network.nic, latency);
  }
  return bytes / (network.nic * network.share) + latency;
}

double host_copy_seconds(const Cluster& cluster, double bytes, int devices) {
  if (cluster.host_link <= 0) return 0;
  const double together = cluster.host_node_link > 0 ? cluster.host_node_link / devices : 0;
  return bytes / (together > 0 ? std::min(cluster.host_link, together) : cluster.host_link);
}

double traffic_share(const Cluster& cluster, const RankPlacement& where, const Library& library) {
  if (where.torus_links > 0 || where.nodes == 1) return 1;
  return std::min(1.0, nic(cluster.network, where, library) * where.in_node /
                           (cluster.node.bandwidth * cluster.node.share));
}

}  // namespace mw
