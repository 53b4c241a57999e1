// Collectives of a cluster as they were measured: their times by size, which take the place of what
// bandwidths and latencies make of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/error.h"
#include "meshwright/json.h"
#include "predict/log_curve.h"

namespace mw {

// One collective among as many ranks on each of some nodes. Collective::send: each rank sends to
// the next one, round a ring.
struct CollectiveCurve {
  int ranks = 0;
  LogCurve times;  // seconds, by the bytes of the larger buffer
  Collective op = Collective::all_reduce;
  int nodes = 1;

  // Towards 0 bytes `least` seconds or the first point's, if these are less; above the last point
  // in proportion to bytes.
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
// A gather or a scatter without a curve takes what the other takes. Inside a node, half of an
// all-reduce stands for them too, and an all-reduce is twice one of these; another number of ranks
// has the bus bandwidth of the next larger one that was measured. Over nodes, a curve counts only
// for its own numbers of nodes and ranks, and that of an all-reduce for no gather or scatter, as
// NCCL's tree sends each byte once between two nodes.
std::optional<CurveTime> curve_time(const std::vector<CollectiveCurve>& curves, Collective op,
                                    double bytes, int ranks, int nodes, double least);

}  // namespace mw
