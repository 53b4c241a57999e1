// Orders of works that a search may choose for its stages, timed by themselves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "predict/search_space.h"

namespace mw {

// What an order of works adds to the time of one stage, and how many microbatches it holds.
struct OrderTerms {
  double bubble = 0;           // in times of a microbatch's forward and backward
  double first = 1, last = 1;  // microbatches under way at most: of any stage, of the last one
  double waiting = 0;          // ... whose parameters' gradients wait, at most on any stage
  bool holds_all = false;      // as many as there are: so many times more of more
  double microbatches = 1;     // that it was timed with
};

class SearchOrders {
 public:
  SearchOrders(const SearchRequest& request, const SearchSpace& space)
      : request_(request), space_(space) {}

  // Each is made once. Null: the schedule refuses so many stages or microbatches.
  const OrderTerms* find(int stages_side, int ways, std::int64_t microbatches);
  // Whether `find` has it already.
  bool knows(int stages_side, int ways, std::int64_t microbatches) const;

 private:
  std::optional<OrderTerms> made(int stages_side, int ways, int microbatches);

  const SearchRequest& request_;
  const SearchSpace& space_;
  std::set<int> right_;  // sides of which an order was checked
  std::map<std::tuple<int, int, std::int64_t>, std::optional<OrderTerms>> found_;
};

}  // namespace mw
