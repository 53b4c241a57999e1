// What collectives and sends take on a cluster's links.
#pragma once

#include <cstdint>
#include <vector>

#include "meshwright/communicator.h"
#include "predict/cluster.h"
#include "predict/machine.h"

namespace mw {

// Where the ranks of a collective are. Others like it run on all other devices at the same time.
struct Placed {
  int ranks = 1;
  int in_node = 1;  // at most, in one node
  int nodes = 1;
  bool one_pod = true;
  int of_node = 1;         // devices that a node has
  double torus_links = 0;  // of a device that the ranks can use at once, shared ones in part
  double torus_load = 0;   // of an all-to-all: of what a rank has, through the busiest link
  int torus_hops = 0;      // between the two ranks that lie furthest apart
};

// `ranks`: ascending; each a device, counted through the nodes.
Placed place(const Cluster& cluster, const std::vector<int>& ranks);

// An exchange of rows, each of which goes to several ranks.
struct RowExchange {
  double copies = 1;     // of each row, to ranks chosen evenly
  int most_nodes = 0;    // that a row's copies go to, by the router's choice; 0: any
  bool by_node = false;  // one copy goes to each node, which hands it on by its own links
};

// How a library carries out what crosses nodes.
struct Library {
  double nics = 1;           // share of a node's NICs that it uses
  bool hierarchical = true;  // gathers and scatters too take the better of ring and hierarchy
};

// Seconds of a collective. `bytes`: of a rank's larger buffer (Transfer::payload).
double collective_seconds(const Cluster& cluster, Collective op, double bytes, const Placed& where,
                          const Library& library);
// How the seconds of a collective are known: measured, if a curve has as many ranks and such sizes
// on this very link; fitted, if they follow from shares that were fitted; else beyond both.
Basis collective_basis(const Cluster& cluster, Collective op, double bytes, const Placed& where);
// The same of transfers that no curve can have measured, which cross nodes or stay in one.
Basis link_basis(const Cluster& cluster, bool crosses);
// Seconds of an all-to-all of rows, `bytes` as above.
double exchange_seconds(const Cluster& cluster, double bytes, const Placed& where,
                        const Library& library, const RowExchange& rows);
// Seconds of a message from one device to another.
double send_seconds(const Cluster& cluster, double bytes, int from, int to);
// Seconds of a copy between a device and its host, while so many devices of the node copy as much
// that way; 0 where there is no link.
double host_copy_seconds(const Cluster& cluster, double bytes, int devices);
// The traffic that the collective puts through a device, against one that stays in a node.
double traffic_share(const Cluster& cluster, const Placed& where, const Library& library);

}  // namespace mw
