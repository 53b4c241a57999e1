// Says what limits a plan that a search found, and what other plans near it lose.
#include "search/why.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

std::string memory_text(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string step_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

// What of the two differs, one change of a kind; 0: several, or none.
int change(const SearchCandidate& a, const SearchCandidate& b) {
  const bool split = a.split.ways != b.split.ways;
  const bool schedule = a.stages_side != b.stages_side && a.stages == b.stages;
  const bool changes[] = {a.inner != b.inner && a.stages == b.stages,
                          a.stages < b.stages && a.inner == b.inner,
                          a.stages > b.stages && a.inner == b.inner,
                          (a.data != b.data || a.split.groups != b.split.groups) && !split,
                          a.microbatch<b.microbatch, a.microbatch> b.microbatch,
                          a.policy<b.policy, a.policy> b.policy,
                          schedule};
  int found = 0;
  for (int i = 0; i < static_cast<int>(std::size(changes)); ++i) {
    if (!changes[i]) continue;
    if (found != 0) return 0;
    found = i + 1;
  }
  if (a.stages != b.stages && a.inner != b.inner) return 0;
  return found;
}

}  // namespace

std::string settings_text(const FoundPlan& found) {
  std::string text = fmt::format("plan = {}, microbatch = {}, recompute = {}", found.plan,
                                 found.microbatch, lua_text(found.recompute));
  if (found.offload != "none") text += fmt::format(", offload = {}", lua_text(found.offload));
  return text;
}

std::string what_limits(const FoundPlan& found) {
  const Prediction& p = found.predicted;
  std::vector<std::pair<double, std::string>> parts = {
      {p.shares.compute, "compute"},
      {p.shares.bubble, "bubble"},
      {p.shares.host_copies, "exposed copies to and from host memory"}};
  for (const auto& [axis, share] : p.shares.exposed)
    parts.emplace_back(share, fmt::format("exposed transfers of {}", axis));
  std::sort(parts.rbegin(), parts.rend());
  std::string text = fmt::format("{} a step", step_text(p.step_seconds));
  const char* between = ": ";
  for (const auto& [share, what] : parts) {
    if (share < 0.005) continue;
    text += fmt::format("{}{:.0f} % {}", between, 100 * share, what);
    between = ", ";
  }
  return text + fmt::format("; {} a rank", memory_text(p.fullest().memory.peak));
}

std::string what_loses(const FoundPlan& best, const FoundPlan& other, std::int64_t memory) {
  std::vector<std::string> changed;
  if (other.plan != best.plan) changed.push_back("plan = " + other.plan);
  if (other.microbatch != best.microbatch)
    changed.push_back(fmt::format("microbatch = {}", other.microbatch));
  if (other.recompute != best.recompute)
    changed.push_back("recompute = " + lua_text(other.recompute));
  if (other.offload != best.offload) changed.push_back("offload = " + lua_text(other.offload));
  const std::string what = join(changed);
  if (!other.fits) {
    const std::int64_t peak = other.predicted.fullest().memory.peak;
    return peak > memory || other.predicted.host_fits()
               ? fmt::format("{}: does not fit, needs {} of {}", what, memory_text(peak),
                             memory_text(memory))
               : fmt::format("{}: does not fit, needs {} of {} in the host memory of a node", what,
                             memory_text(other.predicted.host_needed),
                             memory_text(other.predicted.host_limit));
  }
  return fmt::format(
      "{}: {:+.1f} %", what,
      100 * (other.predicted.step_seconds / std::max(best.predicted.step_seconds, 1e-300) - 1));
}

std::vector<SearchCandidate> neighbours(const SearchCandidate& of,
                                        const std::vector<SearchCandidate>& all) {
  std::map<int, SearchCandidate> found;  // `all` has the fastest first
  for (const SearchCandidate& other : all) {
    const int what = change(of, other);
    if (what == 0) continue;
    const auto [known, missing] = found.try_emplace(what, other);
    const bool sized = other.microbatch != of.microbatch;
    const auto far = [&](const SearchCandidate& one) {
      return std::abs(one.microbatch - of.microbatch);
    };
    if (!missing && sized && far(other) < far(known->second)) known->second = other;
  }
  std::vector<SearchCandidate> list;
  for (const auto& [what, candidate] : found) list.push_back(candidate);
  return list;
}

// "optimizer 3 GiB, parameters 1 GiB", the most first.
static std::string held_text(const MemoryForecast& memory) {
  std::vector<std::pair<std::int64_t, std::string>> held;
  for (std::size_t c = 0; c < category_count; ++c) {
    if (static_cast<Category>(c) == Category::host) continue;
    if (memory.bytes[c] > 0) held.emplace_back(memory.bytes[c], name_of(static_cast<Category>(c)));
  }
  std::sort(held.rbegin(), held.rend());
  std::vector<std::string> texts;
  for (const auto& [count, name] : held)
    texts.push_back(fmt::format("{} {}", name, format_bytes(static_cast<double>(count))));
  return join(texts);
}

std::string memory_hint(const FoundPlan& nearest, const std::vector<FoundPlan>& all, double limit,
                        double host_limit) {
  const auto bytes = [](std::int64_t count) { return format_bytes(static_cast<double>(count)); };
  const MemoryForecast& most = nearest.predicted.fullest().memory;
  std::string hint = fmt::format(
      "devices with {} each, or more ranks under strategies that share out what fills them ({})",
      bytes(most.peak), held_text(most));
  const auto kept_out = std::find_if(all.begin(), all.end(), [&](const FoundPlan& one) {
    return static_cast<double>(one.predicted.fullest().memory.peak) <= limit &&
           !one.predicted.host_fits();
  });
  if (kept_out == all.end()) return hint;
  return hint +
         fmt::format("; {} would fit the devices, and takes {} in the host memory of a node, of {}",
                     settings_text(*kept_out), bytes(kept_out->predicted.host_needed),
                     format_bytes(host_limit));
}

}  // namespace mw
