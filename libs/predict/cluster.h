// A cluster described as data: a device's rates, what nodes and links there are. The files of
// clusters/ hold them; scripts name one (mw.cluster) or bring their own.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/dtype.h"
#include "meshwright/error.h"
#include "meshwright/json.h"
#include "meshwright/options.h"
#include "predict/collective_curve.h"

namespace mw {

// A tile of a matrix product, and the share of the device's rate that it reaches.
struct GemmTile {
  double rows = 0, columns = 0, rate = 1;
  friend bool operator==(const GemmTile&, const GemmTile&) = default;
};

// Rates are per second, sizes in bytes, times in seconds, shares between 0 and 1.
struct DeviceType {
  std::string name;
  // Dense operations a second, by the bits of an element.
  double peak8 = 0, peak16 = 0, peak32 = 0, peak64 = 0;
  bool fitted = false;  // shares of the device and its links are fitted to measured steps
  // Types of reals that the device has no units for, though the rate of their width is given.
  std::set<Dtype> lacks;
  std::int64_t memory = 0;
  std::int64_t workspace = 0;  // bytes that the library of matrix products keeps
  // Bytes that the driver keeps for a process, kernels' code included.
  std::int64_t context = 0;
  std::int64_t communicator = 0;  // bytes of the library of collectives for each communicator
  double bandwidth = 0;           // bandwidth of the device's memory
  double bandwidth_share = 0;     // share of `bandwidth` that streaming kernels achieve
  // Share of the peak that large products reach, with the clocks that power allows.
  double gemm = 0;
  double power = 0;        // rated watts, for which `gemm` and `flash` hold
  double power_limit = 0;  // watts that the device is limited to; 0: `power`
  // Compute units (SMs) that tiles are spread over; 0: products have no tiles.
  double units = 0;
  double tile_k = 0;            // cost of beginning and ending a tile, in steps of k
  std::vector<GemmTile> tiles;  // tiles of products; each product takes the fastest one
  double batched = 1;           // share of `gemm` that attention's products of each head reach
  // Seconds of a kernel that does nothing: its ramp and the gap to the next.
  double kernel = 0;
  // Share of the peak that flash attention reaches, by generation; [0] is unused.
  std::array<double, 4> flash{};
  double launch = 0;           // seconds of the host to launch one op in forward
  double backward_launch = 1;  // factor on `launch` in backward
  // The higher, the more the longer of host and device time decides (phase_seconds).
  double smooth = 0;
  double slowed = 0;     // seconds that compute loses for each second of a collective beside it
  double straggle = 0;   // the slowest rank takes 1 + straggle sqrt(2 ln ranks) times as long
  double optimizer = 0;  // seconds of each optimizer step beside those of its bytes

  double peak(Dtype dtype) const {
    const int bytes = bytes_of(dtype);
    return bytes == 8 ? peak64 : bytes == 4 ? peak32 : peak16;
  }
  friend bool operator==(const DeviceType&, const DeviceType&) = default;
};

// The links inside a node (NodeLinks) and between nodes (Network). Bandwidths are bytes a second of
// one device in one direction.
struct NodeLinks {
  int devices = 1;
  double bandwidth = 0, share = 0.78;
  double latency = 0;  // seconds of one step of a ring
  // Measured collectives; where there are none, rings are priced by the numbers above.
  std::vector<CollectiveCurve> curves;
  double curve_bandwidth = 0;  // bandwidth of the link that the curves were measured on
  double curve_share = 1;      // share of the measured speed that is left within a training step
  // How many times faster this link is than the link that the curves were measured on.
  double curve_scale() const { return curve_bandwidth > 0 ? bandwidth / curve_bandwidth : 1; }
  friend bool operator==(const NodeLinks&, const NodeLinks&) = default;
};
struct Network {
  double nic = 0;  // bandwidth of a node's NICs over its devices; all groups of the node share them
  double share = 0.88;
  double latency = 0;           // seconds from node to node
  double hop = 0;               // seconds of one step of a ring that crosses nodes
  double oversubscription = 1;  // bandwidth of a pod's NICs over that of the tree above the pod
  int pod = 0;                  // nodes that reach one another at full rate; 0: all
  // Share of the NICs' bandwidth that a group gets which has several ranks of a node, but not all:
  // each of its rings goes in and out by one NIC.
  double partial = 1;
  // Measured collectives over several nodes, with all devices of each.
  std::vector<CollectiveCurve> curves;
  double curve_nic = 0;  // `nic` of the network that the curves were measured on
  friend bool operator==(const Network&, const Network&) = default;
};
// Factors by which devices are slower than described: their compute, their links inside the node,
// and their NICs.
struct SlowBy {
  double compute = 1, link = 1, nic = 1;
  friend bool operator==(const SlowBy&, const SlowBy&) = default;
};
// Nodes that are slower than the others, or one device of each.
struct SlowPart {
  int first = 0, last = 0;  // first and last slow node, counted from 0
  // The slow device of each of these nodes, counted from 0; -1: all devices.
  int device = -1;
  SlowBy by;
};
// A torus in place of links inside and between nodes: each device is joined to two neighbours in
// each dim.
struct Torus {
  std::vector<int> shape;  // devices in each dim; empty: the cluster is no torus
  double bandwidth = 0, share = 0.9, latency = 0;
  friend bool operator==(const Torus&, const Torus&) = default;
};

struct Cluster {
  std::string name;
  std::string changed;  // keys whose values differ from the description of that name
  int nodes = 1;
  DeviceType device;
  NodeLinks node;
  Network network;
  Torus torus;
  std::vector<SlowPart> slow;
  // Kinds of nodes with other devices or links, from the first node on; `nodes` of each kind says
  // how many. The nodes that are left over are as this cluster describes them.
  std::vector<Cluster> kinds;
  // Bytes a second between a device and its host, each way (0: not known), and between all of a
  // node's devices together and their host (0: each device has its link for itself).
  double host_link = 0, host_node_link = 0;
  // Bytes a second of the host's memory, at which offloaded parameters are updated.
  double host_bandwidth = 0;
  std::int64_t host_capacity = 0;  // bytes of a node's host memory; 0: not known

  std::vector<std::string_view> changed_keys() const;
  // Whether a changed key begins with `prefix`, as "node.curves" begins with "node.".
  bool changes(std::string_view prefix) const;
  std::int64_t devices() const { return static_cast<std::int64_t>(nodes) * node.devices; }
};

// The declared keys of a cluster: of the table itself under "", of its tables under their names.
std::vector<std::pair<std::string, const Options*>> cluster_keys();

// Reads a table as clusters/*.lua hold it; every problem has its key under `path`.
Cluster read_cluster(const Json& table, const std::string& path, Problems& problems);

}  // namespace mw
