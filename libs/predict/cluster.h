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
  double peak8 = 0, peak16 = 0, peak32 = 0, peak64 = 0;  // dense operations, by an element's bits
  bool fitted = false;    // its shares, and those of its links, come from steps that were measured
  std::set<Dtype> lacks;  // reals that it has no units for, whatever their width's rate
  std::int64_t memory = 0;
  std::int64_t workspace = 0;     // that the library of products keeps
  std::int64_t context = 0;       // bytes of the driver for a process, kernels' code among it
  std::int64_t communicator = 0;  // bytes of the library of collectives for each communicator
  double bandwidth = 0;           // of its memory
  double bandwidth_share = 0;     // the share of it that kernels achieve which stream
  double gemm = 0;                // of the peak, of large products: clocks under power among it
  double power = 0;               // watts under which `gemm` and `flash` are so
  double power_limit = 0;         // watts that it is held to; 0: the same
  double units = 0;               // that tiles are spread over (SMs); 0: products have no tiles
  double tile_k = 0;              // what a tile's begin and end cost, in units of k
  std::vector<GemmTile> tiles;    // the fastest is taken
  double batched = 1;             // of `gemm`, of attention's products of each head
  double kernel = 0;              // of a kernel that does nothing: ramp and gap
  std::array<double, 4> flash{};  // of the peak, by generation; [0] is unused
  double launch = 0;              // of the host to launch one op forward
  double backward_launch = 1;     // launches in backward take so many times that
  double smooth = 0;              // how sharply the slower of host and device decides
  double slowed = 0;              // seconds compute loses for each of a collective beside it
  double straggle = 0;            // 1 + straggle sqrt(2 ln ranks)
  double optimizer = 0;           // seconds of each optimizer step, beside its bytes

  double peak(Dtype dtype) const {
    const int bytes = bytes_of(dtype);
    return bytes == 8 ? peak64 : bytes == 4 ? peak32 : peak16;
  }
  friend bool operator==(const DeviceType&, const DeviceType&) = default;
};

// What joins the devices of a node, and each of them to the next nodes. Bandwidths are of one
// device in one direction.
struct NodeLinks {
  int devices = 1;  // of a node
  double bandwidth = 0, share = 0.78;
  double latency = 0;                   // of a step of a ring
  std::vector<CollectiveCurve> curves;  // none: rings by the numbers above
  double curve_bandwidth = 0;           // of the link that the curves were measured on
  double curve_share = 1;               // within a step, of what was measured alone
  // How many times faster this link is than that of the curves.
  double curve_scale() const { return curve_bandwidth > 0 ? bandwidth / curve_bandwidth : 1; }
  friend bool operator==(const NodeLinks&, const NodeLinks&) = default;
};
struct Network {
  double nic = 0;  // a node's NICs over its devices: all groups of the node share them
  double share = 0.88;
  double latency = 0;           // from node to node
  double hop = 0;               // of a step of a ring that crosses nodes
  double oversubscription = 1;  // of the tree above the nodes of a pod
  int pod = 0;                  // nodes that reach one another at full rate; 0: all
  // What a group gets of their NICs' share that has several ranks of a node, but not all: each of
  // its rings goes in and out by one NIC.
  double partial = 1;
  std::vector<CollectiveCurve> curves;  // over several nodes, with all devices of each
  double curve_nic = 0;                 // of the NICs that the curves were measured on
  friend bool operator==(const Network&, const Network&) = default;
};
// How many times longer than described devices compute, and links of nodes send.
struct SlowBy {
  double compute = 1, link = 1, nic = 1;
  friend bool operator==(const SlowBy&, const SlowBy&) = default;
};
// Nodes that are slower than the others, or one device of each.
struct SlowPart {
  int first = 0, last = 0;  // nodes, counted from 0
  int device = -1;          // of each of them, counted from 0; -1: all
  SlowBy by;
};
// A torus instead of nodes and network: each device is joined to two in each dim.
struct Torus {
  std::vector<int> shape;  // of the whole; empty: there is none
  double bandwidth = 0, share = 0.9, latency = 0;
  friend bool operator==(const Torus&, const Torus&) = default;
};

struct Cluster {
  std::string name;
  std::string changed;  // keys that are other than in the description of that name
  int nodes = 1;
  DeviceType device;
  NodeLinks node;
  Network network;
  Torus torus;
  std::vector<SlowPart> slow;
  // Nodes with other devices or links, from the first node on; `nodes` of each says how many. Those
  // that are left over are as this table describes them.
  std::vector<Cluster> kinds;
  // Bytes a second between a device and its host, each way (0: not known), and between all of a
  // node's devices together and their host (0: each has its link for itself).
  double host_link = 0, host_node_link = 0;
  double host_bandwidth =
      0;  // bytes a second of the host's memory, where what is offloaded is updated
  std::int64_t host_capacity = 0;  // bytes of a node's host memory; 0: not known

  // The keys in `changed`.
  std::vector<std::string_view> changed_keys() const;
  // Whether one of them begins so: "node.".
  bool changes(std::string_view prefix) const;
  std::int64_t devices() const { return static_cast<std::int64_t>(nodes) * node.devices; }
};

// The declared keys of a cluster: of the table itself under "", of its tables under their names.
std::vector<std::pair<std::string, const Options*>> cluster_keys();

// Reads a table as clusters/*.lua hold it; every problem has its key under `path`.
Cluster read_cluster(const Json& table, const std::string& path, Problems& problems);

}  // namespace mw
