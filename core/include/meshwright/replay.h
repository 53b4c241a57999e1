// Goes through a schedule in an order that its dependencies allow. The one place that knows what a
// work needs: F the F of the virtual stage before; B and I their own F and the B or I of the
// virtual stage after; W its own I.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "meshwright/schedule.h"

namespace mw {

// Results of one (virtual stage, microbatch): B leaves the gradient as I does.
enum class Result : std::uint8_t { output, gradient };

struct Need {
  int vstage = -1;  // -1: nothing
  Result result = Result::output;
};

struct Needs {
  Need own, other;  // of the same virtual stage, of a neighbour
};

inline Needs needs_of(const Action& action, int vstages) {
  Needs needs;
  if (action.work == Work::forward) {
    if (action.vstage > 0) needs.other = {action.vstage - 1, Result::output};
  } else if (action.work == Work::wgrad) {
    needs.own = {action.vstage, Result::gradient};
  } else {
    needs.own = {action.vstage, Result::output};
    if (action.vstage + 1 < vstages) needs.other = {action.vstage + 1, Result::gradient};
  }
  return needs;
}

// A number for each (virtual stage, microbatch, result).
inline std::size_t slot_of(int vstage, int microbatch, Result result, int microbatches) {
  const auto cell = static_cast<std::size_t>(vstage) * static_cast<std::size_t>(microbatches) +
                    static_cast<std::size_t>(microbatch);
  return 2 * cell + static_cast<std::size_t>(result);
}

// The slot that a work fills; W fills none: only its own stage's memory waits for it.
inline constexpr std::size_t no_slot = static_cast<std::size_t>(-1);
inline std::size_t filled_by(const Action& action, int microbatches) {
  if (action.work == Work::wgrad) return no_slot;
  return slot_of(action.vstage, action.microbatch,
                 action.work == Work::forward ? Result::output : Result::gradient, microbatches);
}

// Calls visit(stage, step, action) for each action after those that it needs, stage by stage as far
// as each can go. The actions of a group follow each other once all that they need is there.
// Returns the step that each stage reached: less than its number of actions if it waits for ever.
// Every action's virtual stage and microbatch must be in range.
template <typename Visit>
std::vector<std::size_t> replay(const Schedule& schedule, Visit&& visit) {
  const int m = schedule.microbatches, vstages = schedule.vstages();
  const auto stages = schedule.order.size();
  std::vector<char> filled(2 * static_cast<std::size_t>(vstages) * static_cast<std::size_t>(m), 0);
  std::vector<std::size_t> reached(stages, 0), awaited(stages, no_slot), queue;
  for (std::size_t s = stages; s-- > 0;) queue.push_back(s);

  const auto missing = [&](const Need& need, int microbatch) {
    if (need.vstage < 0) return no_slot;
    const std::size_t slot = slot_of(need.vstage, microbatch, need.result, m);
    return filled[slot] ? no_slot : slot;
  };
  while (!queue.empty()) {
    const std::size_t s = queue.back();
    queue.pop_back();
    const auto& actions = schedule.order[s];
    awaited[s] = no_slot;
    std::size_t ready = reached[s];  // up to here all is there that the actions need
    for (std::size_t& step = reached[s]; step < actions.size(); ++step) {
      const std::size_t end = ready > step ? ready : schedule.group_end(static_cast<int>(s), step);
      std::size_t slot = no_slot;
      for (; ready < end && slot == no_slot; ++ready) {
        const Needs needs = needs_of(actions[ready], vstages);
        slot = missing(needs.own, actions[ready].microbatch);
        if (slot == no_slot) slot = missing(needs.other, actions[ready].microbatch);
      }
      if (slot != no_slot) {
        awaited[s] = slot;
        break;
      }
      const Action& action = actions[step];
      visit(static_cast<int>(s), step, action);
      const std::size_t own = filled_by(action, m);
      if (own == no_slot) continue;
      filled[own] = 1;
      const int next = action.work == Work::forward ? action.vstage + 1 : action.vstage - 1;
      if (next < 0 || next >= vstages) continue;
      const auto neighbour =
          static_cast<std::size_t>(schedule.stage_of[static_cast<std::size_t>(next)]);
      if (neighbour != s && awaited[neighbour] == own) {
        awaited[neighbour] = no_slot;
        queue.push_back(neighbour);
      }
    }
  }
  return reached;
}

// What a work adds to its stage's activation memory.
inline double bytes_added(const Action& action, const WorkBytes& bytes) {
  switch (action.work) {
    case Work::forward:
      return bytes.forward;
    case Work::backward:
      return -bytes.forward;
    case Work::dgrad:
      return bytes.dgrad - bytes.forward;
    case Work::wgrad:
      break;
  }
  return -bytes.dgrad;
}

// What each work adds, with the bytes that the request has for its virtual stage. Keeps a reference
// to the request.
inline auto bytes_by(const ScheduleRequest& request) {
  return [&request](const Action& action) {
    return bytes_added(action, request.bytes_of(action.vstage));
  };
}

// Calls visit(first action, bytes) for each group of the stage, and for each work by itself, with
// the activation memory that the stage holds while it runs: a group's works hold what they add
// before any of them lets go of anything. `bytes_of(action)`: what the work adds.
template <typename BytesOf, typename Visit>
void for_each_level(const Schedule& schedule, int stage, BytesOf&& bytes_of, Visit&& visit) {
  const auto& actions = schedule.order[static_cast<std::size_t>(stage)];
  double bytes = 0;
  for (std::size_t k = 0; k < actions.size();) {
    const std::size_t first = k, end = schedule.group_end(stage, k);
    double freed = 0;
    for (; k < end; ++k) {
      const double added = bytes_of(actions[k]);
      (added > 0 ? bytes : freed) += added;
    }
    visit(first, bytes);
    bytes += freed;
  }
}

// Room for sums of fractions that a limit would allow exactly.
inline bool above(double bytes, double limit) {
  return bytes > limit * (1 + 1e-9);
}

}  // namespace mw
