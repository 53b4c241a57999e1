// Prices collectives and sends on a cluster's links.
#pragma once

#include <cstdint>
#include <vector>

#include "meshwright/communicator.h"
#include "predict/cluster.h"
#include "predict/machine.h"

namespace mw {

// Where the ranks of a collective lie. Collectives like it are supposed to run on all other devices
// at the same time.
struct RankPlacement {
  int ranks = 1;
  int in_node = 1;  // most ranks that are in one node
  int nodes = 1;
  bool one_pod = true;
  int of_node = 1;  // devices that a node has
  // Links of a device that the ranks use at once; shared links count in part.
  double torus_links = 0;
  // Bytes that an all-to-all puts through the busiest link, over a rank's bytes.
  double torus_load = 0;
  int torus_hops = 0;  // hops between the two ranks that lie furthest apart
};

// Where these ranks lie. They ascend, and each has the device of its own number, counted through
// the nodes.
RankPlacement place(const Cluster& cluster, const std::vector<int>& ranks);

// An exchange of rows, each of which goes to several ranks.
struct RowExchange {
  double copies = 1;     // copies of each row, to ranks that are chosen evenly
  int most_nodes = 0;    // most nodes that a row's copies go to, by the router's choice; 0: any
  bool by_node = false;  // one copy goes to each node, which hands it on by its own links
};

// How a library carries out collectives that cross nodes.
struct Library {
  double nics = 1;           // share of a node's NICs that it uses
  bool hierarchical = true;  // gathers and scatters too take the better of ring and hierarchy
};

// Seconds of a collective. `bytes`: of a rank's larger buffer (Transfer::payload).
double collective_seconds(const Cluster& cluster, Collective op, double bytes,
                          const RankPlacement& where, const Library& library);
// How the seconds of a collective are known: measured, if a curve has as many ranks and such sizes
// on this very link; fitted, if they follow from shares that were fitted; else beyond both.
Basis collective_basis(const Cluster& cluster, Collective op, double bytes,
                       const RankPlacement& where, const Library& library);
// How the seconds of a transfer are known that no curve can have measured. `crosses`: the transfer
// crosses nodes.
Basis link_basis(const Cluster& cluster, bool crosses);
// Seconds of an all-to-all of rows. `bytes`: of a rank's larger buffer.
double exchange_seconds(const Cluster& cluster, double bytes, const RankPlacement& where,
                        const Library& library, const RowExchange& rows);
// Seconds of a message from one device to another.
double send_seconds(const Cluster& cluster, double bytes, int from, int to);
// Seconds of a copy between a device and its host, while `devices` devices of the node copy as much
// in the same direction; 0 where there is no host link.
double host_copy_seconds(const Cluster& cluster, double bytes, int devices);
// The collective's traffic through a device, over that of a collective inside a node; at most 1.
double traffic_share(const Cluster& cluster, const RankPlacement& where, const Library& library);

}  // namespace mw
