// The weave @NAME@: how the works that a pipeline's schedule joins share their stage. The planner
// runs another lane first where what is said here would read gradients or parameters too early.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "meshwright/plugin.h"
#include "meshwright/weave.h"

namespace {

// A few instructions of each lane in turn.
class @CLASS@ : public mw::Weave {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("each", "instructions of a lane before it is the next one's turn")
        .fallback(4)
        .range(1, 1 << 20)
        .positional("each");
  }
  explicit @CLASS@(const mw::Values& values) : each_(values.int32("each")) {}

  // The lane of each next instruction: each lane as often as it has instructions.
  std::vector<int> order(const mw::WeaveRequest& request) const override {
    std::vector<int> order;
    std::vector<std::size_t> left;
    for (const mw::Segment* lane : request.lanes) left.push_back(lane->code.size());
    while (std::any_of(left.begin(), left.end(), [](std::size_t n) { return n > 0; })) {
      for (std::size_t lane = 0; lane < left.size(); ++lane) {
        const std::size_t count = std::min(left[lane], static_cast<std::size_t>(each_));
        order.insert(order.end(), count, static_cast<int>(lane));
        left[lane] -= count;
      }
    }
    return order;
  }

 private:
  int each_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "a few instructions of each lane in turn",
                  mw::weave<@CLASS@>())
