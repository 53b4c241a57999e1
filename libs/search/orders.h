// Orders of works that a search may choose for its stages: what an order adds to the time of one
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

using WorkCounts = std::array<double, 4>;  // by Work

struct OrderTerms {
  // Microbatches that a stage holds at one time: between forward and backward or dgrad, and between
  // dgrad and wgrad. A chunk counts as the share that its layers are of an average stage's.
  struct Held {
    double kept = 0, waiting = 0;
  };
  // Works of whole stages on the longest ways through the order, on which one waits for the other,
  // beyond those that a stage has itself: what they take is the bubble.
  std::vector<WorkCounts> ways;
  bool parted = false;  // some backward works are in two parts
  // What any stage holds, what the last one does, and what the chunk of the loss does: of each, the
  // moments that no other moment is above in both.
  std::vector<Held> most, last, loss;
  double turns = 1;         // how often gradients of another chunk than before come, at most
  bool holds_all = false;   // as many microbatches as there are: so many times more of more
  bool folded = false;      // the first and the last layer lie on one stage
  double microbatches = 1;  // that the order was made with
};

// What a schedule is told of works: of a layer, and of what the last stage has beside its layers.
struct LayerTimes {
  WorkTimes layer, ends;
};

class SearchOrders {
 public:
  SearchOrders(const SearchRequest& request, const SearchSpace& space)
      : request_(request), space_(space) {}

  // Each order is made once; those in which backward is in two parts once for each policy of
  // recompute, as they follow `times`. Null: the schedule refuses so many stages or microbatches.
  const OrderTerms* find(int stages_side, int ways, std::int64_t microbatches, int policy,
                         const LayerTimes& times);

 private:
  std::optional<OrderTerms> made(int stages_side, int ways, int microbatches,
                                 const LayerTimes& times);
  std::optional<OrderTerms> read(const Schedule& schedule, const WorkTimes& layer) const;

  const SearchRequest& request_;
  const SearchSpace& space_;
  std::set<int> right_;   // sides of which an order was checked
  std::set<int> parted_;  // sides whose orders have dgrad and wgrad apart
  std::map<std::tuple<int, int, std::int64_t, int>, std::optional<OrderTerms>> found_;
};

}  // namespace mw
