// Actions as text, chunks of stages, and the placements of virtual stages in a round or in a V.
#include "meshwright/schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace mw {
namespace {

// The entry of a list that holds nothing, one for all, or one for each virtual stage.
template <typename T>
const T& entry(const std::vector<T>& list, int vstage, const char* what) {
  static const T standard;
  if (list.empty()) return standard;
  if (list.size() == 1) return list[0];
  if (vstage < 0 || static_cast<std::size_t>(vstage) >= list.size()) {
    throw Error(Stage::plan, "schedule.lists", "",
                fmt::format("the schedule's {} are given for {} virtual stages, but there is a "
                            "virtual stage {}",
                            what, list.size(), vstage),
                "give one for all, or one for each virtual stage");
  }
  return list[static_cast<std::size_t>(vstage)];
}

}  // namespace

char letter_of(Work work) {
  return "FBIW"[static_cast<std::size_t>(work)];
}

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.vstage, letter_of(action.work), action.microbatch);
}

std::vector<int> Schedule::chunks(int stage) const {
  std::vector<int> out;
  for (int v = 0; v < vstages(); ++v)
    if (stage_of[static_cast<std::size_t>(v)] == stage) out.push_back(v);
  return out;
}

int Schedule::chunk_of(int vstage) const {
  const auto end = stage_of.begin() + vstage;
  return static_cast<int>(std::count(stage_of.begin(), end, *end));
}

bool Schedule::splits() const {
  return std::any_of(order.begin(), order.end(), [](const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& a) { return a.work == Work::dgrad; });
  });
}

const WorkTimes& ScheduleRequest::times_of(int vstage) const {
  return entry(times, vstage, "times");
}

const WorkBytes& ScheduleRequest::bytes_of(int vstage) const {
  return entry(bytes, vstage, "bytes");
}

std::vector<int> Scheduler::placement(int stages, int chunks) const {
  return round_robin_placement(stages, chunks);
}

std::vector<int> round_robin_placement(int stages, int chunks) {
  std::vector<int> out;
  for (int v = 0; v < stages * chunks; ++v) out.push_back(v % stages);
  return out;
}

std::vector<int> v_placement(int stages) {
  std::vector<int> out;
  for (int v = 0; v < 2 * stages; ++v) out.push_back(v < stages ? v : 2 * stages - 1 - v);
  return out;
}

}  // namespace mw
