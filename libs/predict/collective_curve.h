// Measured times of a cluster's collectives by size, which are used in place of estimates from
// bandwidths and latencies.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/error.h"
#include "meshwright/json.h"
#include "predict/log_curve.h"

namespace mw {

// Measured times of one collective, with equally many ranks on each of `nodes` nodes.
// Collective::send means that each rank sends to the next one in a ring.
struct CollectiveCurve {
  int ranks = 0;
  LogCurve times;  // seconds, by the bytes of the larger buffer
  Collective op = Collective::all_reduce;
  int nodes = 1;

  // Seconds of the collective. Below the first point they go linearly to `least` at 0 bytes, or to
  // the first point's seconds if these are less; above the last point they grow in proportion to
  // bytes.
  double seconds(double bytes, double least) const;
  friend bool operator==(const CollectiveCurve&, const CollectiveCurve&) = default;
};

// Reads a description's list `path` ("cluster.node.curves"). Each curve that is not right becomes a
// Problem (options, cluster.value); the others are returned in ascending order of their ranks.
// `over_nodes`: each curve says over how many nodes its ranks lie.
std::vector<CollectiveCurve> read_curves(const Json& list, const std::string& path, bool over_nodes,
                                         Problems& problems);

// The seconds that measured curves give for a collective, and how well a curve matches it.
struct CurveTime {
  double seconds = 0;
  bool same_op = false;      // the curve is of the collective itself
  bool among_ranks = false;  // the curve has as many ranks, and the size lies between its points
};
// The time of a collective by measured curves; nothing where no curve applies. An all-gather or a
// reduce-scatter without a curve takes the time of the other one. Inside a node, either may also
// take half of an all-reduce's time, and an all-reduce twice theirs; another number of ranks has
// the bus bandwidth of the next larger number that was measured, or else of the largest. Over
// nodes, a curve holds only for its own numbers of nodes and ranks, and an all-reduce's curve for
// no gather or scatter, as NCCL's tree sends each byte once between two nodes.
std::optional<CurveTime> curve_time(const std::vector<CollectiveCurve>& curves, Collective op,
                                    double bytes, int ranks, int nodes, double least);

}  // namespace mw
