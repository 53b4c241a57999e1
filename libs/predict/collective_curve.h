// Collectives of a cluster as they were measured: their times by size, which take the place of what
// bandwidths and latencies make of them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

// One collective among as many ranks on each of some nodes. Collective::send: each rank sends to
// the next one, round a ring.
struct CollectiveCurve {
  int ranks = 0;
  std::vector<std::pair<double, double>> points;  // bytes of the larger buffer, seconds; ascending
  Collective op = Collective::all_reduce;
  int nodes = 1;

  // Straight lines between the logarithms of points. Towards 0 bytes `least` seconds or the first
  // point's, if these are less; above the last point in proportion to bytes.
  double seconds(double bytes, double least) const;
  friend bool operator==(const CollectiveCurve&, const CollectiveCurve&) = default;
};

// Reads a description's list `path` ("cluster.node.curves"). Each curve that is not right becomes a
// Problem (options, cluster.value); the others come ascending by their ranks. `over_nodes`: each
// says on how many nodes its ranks are.
std::vector<CollectiveCurve> read_curves(const Json& list, const std::string& path, bool over_nodes,
                                         Problems& problems);

// What measured curves say of a collective, and how well.
struct CurveTime {
  double seconds = 0;
  bool same_op = false;      // by a curve of the collective itself
  bool among_ranks = false;  // by one of as many ranks, between measured sizes
};
// Inside a node: a gather or a scatter without a curve takes what the other takes or half of an
// all-reduce, an all-reduce twice one of these; another number of ranks has the bus bandwidth of
// the next larger one that was measured.
std::optional<CurveTime> time_in_node(const std::vector<CollectiveCurve>& curves, Collective op,
                                      double bytes, int ranks, double least);
// Over nodes: the same number of nodes and ranks alone; gathers and scatters take one another's.
// All-reduces stand for neither, as NCCL's tree sends each byte once between two nodes.
std::optional<CurveTime> time_over_nodes(const std::vector<CollectiveCurve>& curves, Collective op,
                                         double bytes, int ranks, int nodes, double least);

}  // namespace mw
