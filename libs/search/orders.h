// Orders of works that a search may choose for its stages, timed by themselves; and what a stage
// holds while a work of its order runs, counted in layers and microbatches: of these the closed
// form makes bytes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "meshwright/schedule.h"
#include "search/space.h"

namespace mw {

// What is counted. Of the stage: its layers, and which of the model's ends (embedding, loss) is on
// it, or both. Of microbatches between F and B or I: layers, and how often an end. Of those between
// I and W the same. Of the tensors between chunks: those received and not yet used, and those made
// and not yet known to be there. Of whole gradients that are reduced when the stage turns to
// another chunk: layers, and ends; of the shards of their sums that arrive the same. Of the work:
// layers in whose course it lets go of one thing and makes another: of an I all but the first, of a
// B or W those whose whole gradients come, and those whose sums begin.
enum class Counted : std::uint8_t {
  layers,
  first_end,
  last_end,
  both_ends,
  kept,
  kept_first,
  kept_last,
  waiting,
  waiting_last,
  sent,
  pending,
  pending_first,
  pending_last,
  arriving,
  arriving_first,
  arriving_last,
  turning,
  reducing,
};
constexpr std::size_t counted_kinds = 18, counted_padded = 20;

// Kinds of works, by what they take beside what is held: F, B, I and W of layers, the same of a
// chunk with the loss, and the step's end.
constexpr std::size_t work_kinds = 9;
constexpr std::size_t work_of_end = 8;
constexpr std::size_t kind_of(Work work, bool loss) {
  return static_cast<std::size_t>(work) + (loss ? 4 : 0);
}

struct Moment {
  std::array<float, counted_padded> counts{};
  std::size_t work = work_of_end;
  float& operator[](Counted what) { return counts[static_cast<std::size_t>(what)]; }
  float operator[](Counted what) const { return counts[static_cast<std::size_t>(what)]; }
};

// The moments of all stages, without those beside which another one of the same work has no less of
// anything. An F is counted with what it leaves, the others with what they find. `layers`: of the
// model.
struct Moments {
  std::vector<Moment> usual, by_chunk;  // `usual`: nothing is reduced by chunk
  // What each stage holds once in any order: when its last chunk begins its first backward, that
  // microbatch in each of its chunks.
  std::vector<Moment> sure;
};
Moments moments_of(const Schedule& schedule, std::int64_t layers);
// The moments of one stage that has it all, and so many microbatches.
Moments moments_of_one(std::int64_t layers, std::int64_t microbatches);

// Layers of a virtual stage, as a plan gives them: as even as can be, the first ones more.
inline int layers_of(std::int64_t layers, int vstages, int v) {
  return static_cast<int>(layers / vstages + (v < layers % vstages ? 1 : 0));
}

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
  std::set<int> right_;  // sides of which an order was checked
  std::set<int>
      parted_;  // sides whose orders have dgrad and wgrad apart, and depend on their times
  std::map<Key, std::optional<OrderTerms>> found_;
};

}  // namespace mw
