// Orders of works that a search may choose for its stages, timed by themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "search/moments.h"
#include "search/space.h"

namespace mw {

// What an order of works adds to the time of one stage, and how many microbatches it holds: of a
// whole stage, of which a chunk is a share.
struct OrderTerms {
  // Works on a way through the order, one waiting for the other, beyond those that a stage has
  // itself: what they take is a bubble of at least that length.
  struct Way {
    double forward = 0, backward = 0, dgrad = 0, wgrad = 0;
    friend bool operator==(const Way&, const Way&) = default;
  };
  std::vector<Way> ways;  // the longest ones, for works of usual proportions
  double parted = 0;      // the share of backward works that are dgrad and wgrad apart
  // Microbatches under way at one time: between forward and backward or dgrad, between dgrad and
  // wgrad. A chunk's share is that of its layers in those of an average stage.
  struct Held {
    double kept = 0, waiting = 0;
    friend bool operator==(const Held&, const Held&) = default;
  };
  std::vector<Held> most, last;  // of any stage, of the last: none of them is less in both
  Held first;                    // of the first chunk alone, at most
  Moments moments;               // what stages hold while works run
  double turns = 1;              // how often gradients of another chunk than before come, at most
  bool holds_all = false;        // as many as there are: so many times more of more
  bool assumed = false;          // a plan's order may be another one
  bool folded = false;           // the first and the last layer lie on one stage
  double microbatches = 1;       // that it was timed with
};

// What a schedule is told of works: of a layer, and of what the last stage has beside its layers.
struct LayerTimes {
  WorkTimes layer, ends;
};

class SearchOrders {
 public:
  SearchOrders(const SearchRequest& request, const SearchSpace& space)
      : request_(request), space_(space) {}

  // Each is made once. `policy`: of recompute; `times`: of it, asked where the order is new.
  // Null: the schedule refuses so many stages or microbatches.
  const OrderTerms* find(int stages_side, int ways, std::int64_t microbatches, int policy,
                         const std::function<LayerTimes()>& times);
  // Whether `find` has it already.
  bool knows(int stages_side, int ways, std::int64_t microbatches, int policy) const;

 private:
  using Key = std::tuple<int, int, std::int64_t, int>;
  Key key(int stages_side, int ways, std::int64_t microbatches, int policy) const;
  std::optional<OrderTerms> made(int stages_side, int ways, int microbatches,
                                 const LayerTimes& times);

  const SearchRequest& request_;
  const SearchSpace& space_;
  std::set<int> right_;   // sides of which an order was checked
  std::set<int> parted_;  // ... whose orders have dgrad and wgrad apart, and depend on their times
  std::map<Key, std::optional<OrderTerms>> found_;
};

}  // namespace mw
