// Finds which devices of a cluster are alike, and which of them a stage's ranks have.
#include "predict/cluster_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace mw {

Cluster slowed(Cluster cluster, const SlowBy& by) {
  DeviceType& d = cluster.device;
  for (double* rate : {&d.peak8, &d.peak16, &d.peak32, &d.peak64, &d.bandwidth})
    *rate /= by.compute;
  d.kernel *= by.compute;
  cluster.node.bandwidth /= by.link;
  cluster.torus.bandwidth /= by.link;
  cluster.network.nic /= by.nic;
  return cluster;
}

namespace {

// Whether both clusters are the same in all numbers of devices, links and hosts.
bool same_numbers(const Cluster& a, const Cluster& b) {
  DeviceType device = a.device;
  device.name = b.device.name;
  return device == b.device && a.node == b.node && a.network == b.network && a.torus == b.torus &&
         a.host_link == b.host_link && a.host_node_link == b.host_node_link &&
         a.host_bandwidth == b.host_bandwidth && a.host_capacity == b.host_capacity;
}

// How much slower than described a device of a node is.
SlowBy slow_of(const Cluster& cluster, int node, int device) {
  SlowBy by;
  for (const SlowPart& part : cluster.slow) {
    if (node < part.first || node > part.last) continue;
    if (part.device >= 0 && part.device != device) continue;
    by.compute = std::max(by.compute, part.by.compute);
    by.link = std::max(by.link, part.by.link);
    by.nic = std::max(by.nic, part.by.nic);
  }
  return by;
}

// The cluster as if all nodes were of one of its kinds; `kind` 0: of no kind.
Cluster of_kind(const Cluster& cluster, int kind) {
  Cluster one = cluster;
  one.kinds.clear();
  one.slow.clear();
  if (kind == 0) return one;
  const Cluster& other = cluster.kinds[static_cast<std::size_t>(kind - 1)];
  one.device = other.device;
  one.node = other.node;
  one.network = other.network;
  one.host_link = other.host_link;
  one.host_node_link = other.host_node_link;
  one.host_bandwidth = other.host_bandwidth;
  one.host_capacity = other.host_capacity;
  return one;
}

}  // namespace

ClusterParts::ClusterParts(const Cluster& cluster) {
  const std::int64_t devices = cluster.node.devices;
  std::set<int> nodes = {0, cluster.nodes};  // nodes at which a kind or a slow part begins
  std::vector<std::pair<int, int>> kinds;    // by kind: its first node, and its number
  int next = 0;
  for (std::size_t k = 0; k < cluster.kinds.size(); ++k) {
    kinds.emplace_back(next, static_cast<int>(k) + 1);
    nodes.insert(next += cluster.kinds[k].nodes);
  }
  kinds.emplace_back(next, 0);
  // Devices of a node at which a slow part begins.
  std::set<int> within = {0, cluster.node.devices};
  for (const SlowPart& part : cluster.slow) {
    nodes.insert({part.first, part.last + 1});
    if (part.device >= 0) within.insert({part.device, part.device + 1});
  }
  for (auto at = nodes.begin(); std::next(at) != nodes.end(); ++at) {
    const int kind = std::prev(std::find_if(kinds.begin(), kinds.end(), [&](const auto& one) {
                       return one.first > *at;
                     }))->second;
    const Cluster described = of_kind(cluster, kind);
    const bool alike = std::ranges::all_of(within, [&](int device) {
      return device == devices || slow_of(cluster, *at, device) == slow_of(cluster, *at, 0);
    });
    if (alike) {
      add(*at * devices, *std::next(at) * devices, described, kind, slow_of(cluster, *at, 0));
      continue;
    }
    for (int node = *at; node < *std::next(at); ++node) {
      for (auto device = within.begin(); std::next(device) != within.end(); ++device)
        add(node * devices + *device, node * devices + *std::next(device), described, kind,
            slow_of(cluster, node, *device));
    }
  }
  // Steps on devices that are not alike were never measured.
  for (Part& part : all_) part.cluster.device.fitted = part.cluster.device.fitted && !uneven();
}

void ClusterParts::add(std::int64_t first, std::int64_t end, const Cluster& described, int kind,
                       const SlowBy& by) {
  auto part =
      std::ranges::find_if(all_, [&](const Part& one) { return one.kind == kind && one.by == by; });
  if (part == all_.end()) {
    Cluster cluster = slowed(described, by);
    part = std::ranges::find_if(
        all_, [&](const Part& one) { return same_numbers(one.cluster, cluster); });
    if (part == all_.end()) {
      const std::string key =
          kind == 0 ? "cluster.device" : fmt::format("cluster.kinds[{}].device", kind);
      part = all_.insert(all_.end(), {std::move(cluster), key, by, kind, 0});
    }
  }
  part->devices += end - first;
  const auto number = static_cast<int>(part - all_.begin());
  if (!runs_.empty() && runs_.back().part == number) {
    runs_.back().end = end;
  } else {
    runs_.push_back({first, end, number});
  }
}

int ClusterParts::of(int device) const {
  const auto behind = std::upper_bound(runs_.begin(), runs_.end(), device,
                                       [](int at, const Run& run) { return at < run.first; });
  return std::prev(behind)->part;  // devices beyond all nodes are in the last run
}

std::vector<int> ClusterParts::among(int first, int end) const {
  std::set<int> found;
  for (const Run& run : runs_) {
    if (run.first < end && run.end > first) found.insert(run.part);
  }
  if (found.empty()) found.insert(runs_.back().part);
  return {found.begin(), found.end()};
}

namespace {

// The difference of two ranks whose coordinates differ by one in the stage alone.
int stage_stride(const Program& program) {
  Coordinates at(program.mesh.atoms().size(), 0);
  at[static_cast<std::size_t>(program.stage_atom)] = 1;
  return program.mesh.rank(at);
}

}  // namespace

std::vector<int> ClusterParts::of_stage(const Program& program, int stage) const {
  const int ranks = program.mesh.size();
  if (program.stage_atom < 0 || program.stages < 2) return among(0, ranks);
  const int stride = stage_stride(program), round = stride * program.stages;
  std::set<int> found;
  for (int first = stage * stride; first < ranks && found.size() < all_.size(); first += round) {
    for (const int part : among(first, first + stride)) found.insert(part);
  }
  return {found.begin(), found.end()};
}

std::vector<std::vector<RankClass>> ClusterParts::split(
    const Program& program, const std::vector<RankClass>& classes) const {
  std::vector<std::vector<RankClass>> found(classes.size());
  // A class is a range of coordinates along each atom; its `at` has the first ones.
  const std::size_t atoms = program.mesh.atoms().size();
  std::vector<std::set<int>> begins(atoms);
  std::map<Coordinates, std::size_t> numbers;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    numbers[classes[c].at] = c;
    for (std::size_t a = 0; a < atoms; ++a) begins[a].insert(classes[c].at[a]);
  }
  std::vector<std::map<int, RankClass>> by_part(classes.size());
  const int ranks = program.mesh.size();
  const int stride = program.stages < 2 ? ranks : stage_stride(program);
  for (int first = program.stage * stride; first < ranks; first += stride * program.stages) {
    for (int rank = first; rank < first + stride; ++rank) {
      const Coordinates own = program.mesh.coordinates(rank);
      Coordinates at = own;
      for (std::size_t a = 0; a < atoms; ++a) at[a] = *std::prev(begins[a].upper_bound(at[a]));
      const auto [known, missing] =
          by_part[numbers.at(at)].try_emplace(of(rank), RankClass{own, 1});
      if (!missing) ++known->second.ranks;
    }
  }
  for (std::size_t c = 0; c < classes.size(); ++c) {
    for (auto& [part, one] : by_part[c]) found[c].push_back(std::move(one));
  }
  return found;
}

}  // namespace mw
