// What slow nodes, devices and links of a cluster mean for the stages of a plan.
#include <algorithm>

#include "predict/on_cluster.h"

namespace mw {
namespace {

bool has_rank_of(const Program& program, int stage, int first, int last) {
  if (program.stage_atom < 0) return first < program.mesh.size();
  for (int rank = first; rank <= std::min(last, program.mesh.size() - 1); ++rank) {
    if (program.mesh.coordinates(rank)[program.stage_atom] == stage) return true;
  }
  return false;
}

void take_slower(SlowBy& of, const SlowBy& other) {
  of.compute = std::max(of.compute, other.compute);
  of.link = std::max(of.link, other.link);
  of.nic = std::max(of.nic, other.nic);
}

}  // namespace

SlowBy slow_by(const Cluster& cluster, const Program& program, int stage) {
  SlowBy slowest;
  const int devices = cluster.node.devices;
  for (const SlowPart& part : cluster.slow) {
    for (int node = part.first; node <= part.last; ++node) {
      const int first = node * devices + std::max(part.device, 0);
      const int last = part.device >= 0 ? first : (node + 1) * devices - 1;
      if (!has_rank_of(program, stage, first, last)) continue;
      take_slower(slowest, part.by);
      break;  // all nodes of a part are as slow
    }
  }
  return slowest;
}

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

double OnCluster::slower_peer(const Instruction& i) const {
  if (!own_) return 1;
  const SlowBy own = slow_by(described_, program_, program_.stage),
               peer = slow_by(described_, program_, i.move.peer);
  const bool inside = link_to(i) == node_send_link || !described_.torus.shape.empty();
  return std::max(1.0, inside ? peer.link / own.link : peer.nic / own.nic);
}

}  // namespace mw
