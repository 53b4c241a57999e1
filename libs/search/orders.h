// Pipeline orders that a search may choose for its stages: what an order adds to the time of one
// stage, and how many microbatches a stage holds in it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "meshwright/schedule.h"
#include "search/space.h"

namespace mw {

// How many works (forward, backward, dgrad, wgrad), by Work.
using WorkCounts = std::array<double, 4>;

struct OrderTerms {
  // Microbatches that a stage holds at one time: from forward to backward or dgrad (`kept`), and
  // from dgrad to wgrad (`waiting`). A chunk counts as its layers over those of an average stage.
  struct Held {
    double kept = 0, waiting = 0;
  };
  // Works on the longest ways of dependencies through the order, beyond the works of one stage, in
  // works of whole stages: their seconds are the bubble.
  std::vector<WorkCounts> ways;
  bool parted = false;  // some backward works are split into dgrad and wgrad
  // What any stage holds, what the last stage holds, and what the chunk with the loss holds: of
  // each, the moments that no other moment exceeds in both numbers.
  std::vector<Held> most, last, loss;
  double turns = 1;  // most turns of a stage to the weight gradients of another chunk
  // A stage holds all microbatches, so that it holds more where there are more.
  bool holds_all = false;
  bool folded = false;      // the first and the last layer lie on one stage
  double microbatches = 1;  // microbatches that the order was made with
};

// The times of works that a schedule is told: of one layer, and of what the last stage has beside
// its layers.
struct LayerTimes {
  WorkTimes layer, ends;
};

class SearchOrders {
 public:
  SearchOrders(const SearchRequest& request, const SearchSpace& space)
      : request_(request), space_(space) {}

  // The terms of an order. Each is made once; one with dgrad and wgrad apart is made once for each
  // policy of recompute, as it follows `times`. Null: the schedule refuses so many stages or
  // microbatches.
  const OrderTerms* find(int stages_side, int ways, std::int64_t microbatches, int policy,
                         const LayerTimes& times);

 private:
  std::optional<OrderTerms> made(int stages_side, int ways, int microbatches,
                                 const LayerTimes& times);
  std::optional<OrderTerms> read(const Schedule& schedule, const WorkTimes& layer) const;

  const SearchRequest& request_;
  const SearchSpace& space_;
  std::set<int> right_;   // indices of SearchSpace::stages of which an order was checked
  std::set<int> parted_;  // indices of SearchSpace::stages whose orders have dgrad and wgrad apart
  std::map<std::tuple<int, int, std::int64_t, int>, std::optional<OrderTerms>> found_;
};

}  // namespace mw
