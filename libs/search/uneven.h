// Prices a search's candidates where a cluster's devices are not alike: slow ones, or ones of
// several kinds.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "search/search.h"

namespace mw {

class UnevenStages {
 public:
  explicit UnevenStages(const SearchRequest& request)
      : cluster_(request.machine->parts()),
        ranks_(request.ranks),
        layers_(request.base->graph->layers),
        parts_(cluster_.among(0, request.ranks)) {}

  // The parts of the cluster on which the ranks lie.
  const std::vector<int>& parts() const { return parts_; }

  // Seconds of a step: the bubble, which grows with the work of every stage, and the rest, which
  // grows with that of the busiest.
  struct Time {
    double busiest = 0, bubble = 0;
  };
  // Seconds of a step of `stages` stages, each of `chunks` chunks. `by_part`: the step's times if
  // all devices were as one of these parts. Stages lie one after the other, and each is as fast as
  // the slowest part that it lies on. Layers are shared out so that the busiest stage has least to
  // do: a stage has at least one in each chunk.
  double seconds(int stages, int chunks, const std::vector<Time>& by_part);

 private:
  // By stage, the indices in `parts_` of the parts that it lies on.
  using Lies = std::vector<std::vector<std::size_t>>;
  const Lies& lies(int stages);

  const ClusterParts& cluster_;
  const int ranks_, layers_;
  const std::vector<int> parts_;
  std::map<int, Lies> lies_;  // by the number of stages
};

}  // namespace mw
