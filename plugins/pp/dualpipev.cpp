// DualPipeV: DeepSeek's DualPipe cut in half, so that a stage holds one copy of two chunks of a V.
// Microbatches go down the V (chunk 0) and up again (chunk 1); once both ways are full, each F of
// one chunk is paired with a B of the other.
#include <algorithm>
#include <array>
#include <deque>

#include "schedulers.h"

namespace pp {
namespace {

// Writes one stage's order, and counts the microbatches of each chunk's F and B.
class Pen {
 public:
  Pen(Schedule& schedule, int stage, bool pair)
      : vstage_{stage, 2 * schedule.stages() - 1 - stage},
        schedule_(schedule),
        stage_(stage),
        pair_(pair),
        order_(schedule.order[static_cast<std::size_t>(stage)]) {}

  // Appends F of one chunk and B of the other, grouped if asked.
  void pair(std::size_t forward_chunk, std::size_t backward_chunk) {
    forward(forward_chunk);
    backward(backward_chunk);
    if (pair_) schedule_.join(stage_, order_.size() - 2);
  }

  void forward(std::size_t chunk) {
    order_.push_back({vstage_[chunk], Work::forward, forwards_[chunk]++});
  }
  void backward(std::size_t chunk, bool whole = true) {
    const Action action = {vstage_[chunk], whole ? Work::backward : Work::dgrad,
                           backwards_[chunk]++};
    order_.push_back(action);
    if (!whole) put_off_.push_back({action.vstage, Work::wgrad, action.microbatch});
  }
  void wgrad() {
    if (put_off_.empty()) return;
    order_.push_back(put_off_.front());
    put_off_.pop_front();
  }
  bool any_put_off() const { return !put_off_.empty(); }

 private:
  std::array<int, 2> vstage_, forwards_{}, backwards_{};
  Schedule& schedule_;
  int stage_;
  bool pair_;
  std::vector<Action>& order_;
  std::deque<Action> put_off_;
};

void write_stage(Schedule& schedule, int stage, int microbatches, bool pair) {
  const int stages = schedule.stages();
  Pen pen(schedule, stage, pair);
  const int below = stages - stage - 1, above = stage + 1;
  const auto times = [](int count, auto&& step) {
    for (int i = 0; i < count; ++i) step(i);
  };
  // Fill the way down the V with F's, then both ways.
  times(2 * below, [&](int) { pen.forward(0); });
  times(above, [&](int) {
    pen.forward(0);
    pen.forward(1);
  });
  // The loss has sent gradients: their I runs at once, so that they go on to other stages.
  times(below, [&](int) {
    pen.backward(1, false);
    pen.wgrad();
    pen.forward(1);
  });
  times(microbatches - 2 * stages + above, [&](int) {
    pen.pair(0, 1);
    pen.pair(1, 0);
  });
  // No more microbatches enter.
  times(below, [&](int) {
    pen.backward(1);
    pen.pair(1, 0);
  });
  // From the middle on, W's are put off to fill the way out; odd stages begin with chunk 1.
  times(above, [&](int i) {
    const bool late = i > above / 2, middle = i == above / 2;
    pen.backward(1, !(late || (middle && stage % 2 == 1)));
    pen.backward(0, !(late || middle));
  });
  times(below, [&](int) {
    pen.wgrad();
    pen.backward(0, false);
  });
  while (pen.any_put_off()) pen.wgrad();
}

}  // namespace

void fill_dualpipev(const ScheduleRequest& request, bool pair, Schedule& schedule) {
  const int microbatches = std::max(request.microbatches, 2 * request.stages);
  for (int s = 0; s < request.stages; ++s) write_stage(schedule, s, microbatches, pair);
  keep_microbatches(schedule, request.microbatches);
}

}  // namespace pp
