// Small sizes for the dims of a few ops, such that the ops still take them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "meshwright/graph.h"

namespace mw::lemmas {

// An axis of the small mesh on which a lemma is tried.
struct SmallAxis {
  Dim cut;     // none: it cuts nothing of the op, which carries a sum over it
  Dim follow;  // the dim that is cut along with it; may be none
  int ways = 2;
  bool ring = false;  // `follow` goes round the axis
};

// How far sizes are changed. An op's own numbers (how many choices a token has) have to fit its
// dims, and nobody but its author knows which; so what refuses one way is tried in the next.
enum class Shrink : std::uint8_t {
  all,   // all but those that are small already
  cut,   // dims that must be whole stay as they are
  none,  // only what cannot be cut as it is
};

// Of each dim of these ops, or nothing where there are none or they would be large. What holds for
// the sizes in the graph holds for the small ones: which are equal (but for batch and seq), which
// is larger, what is odd, which divides the one that it follows, and which are sums of others. A
// dim that need not be cut evenly is cut unevenly.
std::optional<std::map<Dim, std::int64_t>> small_sizes(const Graph& graph,
                                                       const std::vector<int>& ops,
                                                       const std::vector<SmallAxis>& axes,
                                                       Shrink shrink);

}  // namespace mw::lemmas
