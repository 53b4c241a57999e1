// Actions as text, chunks of stages, and the placements of virtual stages in a round or in a V.
#include "meshwright/schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace mw {
namespace {

// A virtual stage's entry in a list that holds nothing, one entry for all, or one for each of them.
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

bool Schedule::joins(int stage, std::size_t step) const {
  const auto s = static_cast<std::size_t>(stage);
  return s < joined.size() && step < joined[s].size() && joined[s][step] &&
         step + 1 < order[s].size();
}

bool Schedule::grouped() const {
  for (int s = 0; s < stages(); ++s)
    for (std::size_t k = 0; k < order[static_cast<std::size_t>(s)].size(); ++k)
      if (joins(s, k)) return true;
  return false;
}

void Schedule::join(int stage, std::size_t step) {
  const auto s = static_cast<std::size_t>(stage);
  joined.resize(order.size());
  joined[s].resize(order[s].size(), false);
  joined[s].at(step) = true;
}

std::size_t Schedule::group_end(int stage, std::size_t first) const {
  while (joins(stage, first)) ++first;
  return first + 1;
}

std::string group_text(const Schedule& schedule, int stage, std::size_t first) {
  const auto& actions = schedule.order[static_cast<std::size_t>(stage)];
  std::string text;
  for (std::size_t k = first; k < schedule.group_end(stage, first); ++k)
    text += (k > first ? "+" : "") + to_string(actions[k]);
  return text;
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
