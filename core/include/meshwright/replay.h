// Replays a schedule in an order that its dependencies allow. Only this file defines the
// dependencies of actions: F needs the F of the virtual stage before; B and I need the F of their
// own virtual stage and the B or I of the next one; W needs the I of its own virtual stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "meshwright/schedule.h"

namespace mw {

// The results of a virtual stage for a microbatch: F makes the output, B and I make the gradient.
enum class Result : std::uint8_t { output, gradient };

struct Need {
  int vstage = -1;  // the virtual stage that makes the result; -1: nothing is needed
  Result result = Result::output;
};

struct Needs {
  Need own, other;  // a result of the same virtual stage, and one of a neighbour
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

// A unique number for each (virtual stage, microbatch, result), from 0.
inline std::size_t slot_of(int vstage, int microbatch, Result result, int microbatches) {
  const auto cell = static_cast<std::size_t>(vstage) * static_cast<std::size_t>(microbatches) +
                    static_cast<std::size_t>(microbatch);
  return 2 * cell + static_cast<std::size_t>(result);
}

// The slot of the result that an action makes; no_slot for W, on which no other action depends.
inline constexpr std::size_t no_slot = static_cast<std::size_t>(-1);
inline std::size_t filled_by(const Action& action, int microbatches) {
  if (action.work == Work::wgrad) return no_slot;
  return slot_of(action.vstage, action.microbatch,
                 action.work == Work::forward ? Result::output : Result::gradient, microbatches);
}

// Calls visit(stage, step, action) for each action, after all actions that it needs; each stage
// goes as far as it can before the next one. The actions of a group are visited one after the
// other, once all of their needs are met. Returns the step that each stage reached, which is less
// than its number of actions if the schedule deadlocks. Every action's virtual stage and microbatch
// must be in range.
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
    std::size_t ready = reached[s];  // the needs of all actions before this one are met
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

// The bytes that an action adds to its stage's activation memory (negative: it frees them).
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

// Returns a function that computes bytes_added() of an action with the bytes of a request. It keeps
// a reference to the request.
inline auto bytes_by(const ScheduleRequest& request) {
  return [&request](const Action& action) {
    return bytes_added(action, request.bytes_of(action.vstage));
  };
}

// Calls visit(first action, bytes) for each group of the stage, and for each action without a
// group, with the activation memory that the stage holds while the group runs: all actions of a
// group add their bytes before any of them frees bytes. `bytes_of(action)`: the bytes that the
// action adds.
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

// Whether bytes exceed a limit by more than rounding errors of sums.
inline bool above(double bytes, double limit) {
  return bytes > limit * (1 + 1e-9);
}

}  // namespace mw
