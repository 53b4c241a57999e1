// Plans candidates of a search whole, says what limits the best one and what its neighbours lose,
// or why there is nothing to recommend.
#include "search/whole.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "meshwright/engine/plan.h"
#include "meshwright/engine/text.h"
#include "meshwright/stage_balance.h"
#include "predict/stage_layout.h"

namespace mw {

WholePlans::WholePlans(const SearchRequest& request, const SearchSpace& space,
                       std::function<void()> planned)
    : request_(request), space_(space), planned_(std::move(planned)) {}

PlanRequest WholePlans::request_of(const SearchCandidate& candidate) const {
  PlanRequest request = request_.base->request;
  request.microbatch = candidate.microbatch;
  const SearchPolicy& policy = space_.policies.at(candidate.policy);
  request.recompute = policy.recompute.policy;
  request.offload = policy.offload.policy;
  return request;
}

int WholePlans::plan(const SearchCandidate& candidate) {
  if (const auto known = places_.find(candidate.key()); known != places_.end())
    return known->second;
  FoundPlan found;
  found.entries =
      entries_of(candidate.stages_side < 0 ? nullptr : &space_.stages[candidate.stages_side],
                 candidate.stages, candidate.data < 0 ? nullptr : &space_.data[candidate.data],
                 candidate.split, space_.inner[candidate.inner]);
  found.microbatch = candidate.microbatch;
  found.recompute = space_.policies.at(candidate.policy).recompute.written;
  found.offload = space_.policies.at(candidate.policy).offload.written;
  found.closed_form_seconds = candidate.seconds;
  found.closed_form_bytes = candidate.bytes;
  found.closed_form_host_bytes = candidate.host;
  PlanRequest request = request_of(candidate);
  if (candidate.stages > 1) {  // even stages, which are one plan to make: see balance()
    const int chunks = space_.stages[candidate.stages_side].chunks;
    request.stage_layers = even_layers(request_.base->graph->layers, candidate.stages * chunks);
  }
  Problems problems;
  const auto plan = plan_of(request_, std::move(request), found.entries, choices_, problems);
  if (plan) {
    found.predicted = predict(*plan, *request_.machine);
    found.plan = plan->mix();
    found.layers = plan->stage_layers;
    found.measured = nearest_measured(request_.machine->stack().measured, sizes_of(*plan));
    found.predicted.limit_memory(request_.memory);
    found.fits = found.predicted.fits;
    if (found.fits) check_plan(*plan, problems);  // it may be recommended
  }
  int& place = places_[candidate.key()];
  place = -1;
  if (!plan || !problems.empty()) {
    if (!refusal_ && !problems.empty()) refusal_ = problems.list().front();
    return place;
  }
  place = static_cast<int>(all_.size());
  candidates_.push_back(candidate);
  balanced_.push_back(candidate.stages < 2);
  all_.push_back(std::move(found));
  if (all_.back().fits) fitting_.push_back(place);
  if (planned_) planned_();
  // Even stages say little of a plan where devices are not alike.
  if (request_.machine->uneven()) balance(place);
  return place;
}

bool WholePlans::balance(int place) {
  constexpr int tries = 6;
  const auto at = static_cast<std::size_t>(place);
  if (balanced_[at]) return false;
  balanced_[at] = true;
  FoundPlan& found = all_[at];
  const PlanMaker balanced = [&](const PlanRequest& request, Problems& problems) {
    auto plan = make_balanced_plan(request, *request_.machine, request_.memory, problems, tries);
    if (plan) check_plan(*plan, problems);
    return plan;
  };
  Problems none;
  const auto plan =
      plan_of(request_, request_of(candidates_[at]), found.entries, choices_, none, balanced);
  if (!plan) return false;
  Prediction predicted = predict(*plan, *request_.machine);
  predicted.limit_memory(request_.memory);
  if (!predicted.fits && found.fits) return false;
  if (request_.machine->uneven() && predicted.fits && !found.fits) {
    found.fits = true;
    fitting_.push_back(place);
  }
  found.predicted = std::move(predicted);
  found.layers = plan->stage_layers;
  return true;
}

namespace {

// Throws the Error for microbatches of which none divides a rank's sequences.
[[noreturn]] void refuse_sizes(const SearchRequest& request,
                               const std::set<std::int64_t>& sequences) {
  std::vector<std::string> asked, own;
  std::set<std::int64_t> good;
  for (const std::int64_t size : request.microbatches) asked.push_back(std::to_string(size));
  for (const std::int64_t has : sequences) {
    own.push_back(std::to_string(has));
    for (std::int64_t size = 1; size * size <= has; ++size) {
      if (has % size == 0) good.insert({size, has / size});
    }
  }
  if (own.size() > 6) own = {own[0], own[1], own[2], "…", own.back()};
  const auto above = good.upper_bound(request.microbatches.front());
  std::string nearest;
  if (above != good.begin()) nearest = std::to_string(*std::prev(above));
  if (above != good.end()) nearest += (nearest.empty() ? "" : " or ") + std::to_string(*above);
  throw Error(
      Stage::plan, "search.microbatch", "microbatch",
      fmt::format("microbatch: {}{} divides the sequences of a rank in {} mix of {} ranks: "
                  "of a batch of {} it has {}",
                  asked.size() > 1 ? "none of " : "", join(asked), asked.size() > 1 ? "any" : "no",
                  request.ranks, request.base->request.batch, join(own)),
      "nearest: microbatch = " + nearest);
}

// The nearest numbers of ranks, below and above, for which there is a mix; empty if they are
// further away than `tried`.
std::string nearest_ranks(const SearchRequest& request) {
  constexpr int tried = 16;
  SearchRequest other = request;
  other.progress = nullptr;
  std::string text;
  for (const int step : {-1, 1}) {
    for (int away = 1; away <= tried; ++away) {
      other.ranks = request.ranks + step * away;
      if (other.ranks < 1 || other.ranks > request.machine->cluster().devices()) break;
      if (!any_candidate(other)) continue;
      text += (text.empty() ? "nearest: ranks = " : " or ") + std::to_string(other.ranks);
      break;
    }
  }
  return text;
}

// The key in the search's own table that a plan's problem belongs to; `otherwise` where it belongs
// to none.
std::string key_in_search(const Problem& problem, const std::string& otherwise) {
  return problem.key.empty() || problem.key.starts_with("plan") ? otherwise : problem.key;
}

std::string none_possible(const SearchRequest& request, const std::string& why) {
  return fmt::format("no mix of {} on {} ranks is possible: {}", join(request.strategies),
                     request.ranks, why);
}

}  // namespace

double filled(const FoundPlan& found, double limit) {
  const Prediction& p = found.predicted;
  const StageForecast& fullest = p.fullest();
  return std::max(static_cast<double>(fullest.memory.peak) /
                      std::min(limit, static_cast<double>(fullest.device.bytes)),
                  p.host_limit > 0
                      ? static_cast<double>(p.host_needed) / static_cast<double>(p.host_limit)
                      : 0);
}

void refuse_all(const SearchRequest& request, const SearchSpace& space,
                const PricedCandidates& priced, const Problem* first) {
  const std::int64_t batch = request.base->request.batch;
  if (priced.formed && !priced.divides) {
    const std::int64_t above = (batch / request.ranks + 1) * request.ranks;
    throw Error(Stage::plan, "search.batch", "batch",
                fmt::format("batch: {} cannot be split over the data's ranks of any mix of {} "
                            "ranks",
                            plural(batch, "sequence"), request.ranks),
                fmt::format("nearest: batch = {}", above));
  }
  if (priced.divides && !priced.sized) refuse_sizes(request, priced.unsized);
  std::vector<std::string> reasons;
  if (priced.refused > 0) {
    reasons.push_back(
        fmt::format("{} {} refused", priced.refused, priced.refused == 1 ? "was" : "were"));
    if (first != nullptr) reasons.back() += ", the first as " + first->message;
  }
  if (priced.shallow > 0) {
    reasons.push_back(fmt::format(
        "{} {} more chunks, on all stages together, than the model's {} "
        "layers",
        priced.shallow, priced.shallow == 1 ? "has" : "have", request.base->graph->layers));
  }
  reasons.insert(reasons.end(), space.passed.begin(), space.passed.end());
  reasons.insert(reasons.end(), priced.passed.begin(), priced.passed.end());
  if (!space.left_out.empty())
    reasons.push_back(fmt::format("the software of the stack {} lacks {}",
                                  request.machine->stack().name, join(space.left_out, "; ")));
  if (reasons.empty()) reasons.emplace_back("these have no axes that make so many");
  std::vector<std::string> hints;
  if (const std::string ranks = nearest_ranks(request); !ranks.empty()) hints.push_back(ranks);
  if (priced.shallow > 0) {
    hints.push_back(fmt::format("schedules of fewer chunks, or a model of {} layers or more",
                                priced.least_layers));
  }
  if (first != nullptr && priced.refused > 0 && !first->hint.empty())
    hints.push_back("of the first that was refused: " + first->hint);
  if (hints.empty()) hints.emplace_back("allow more strategies, microbatches or schedules");
  const bool refused = first != nullptr && priced.refused > 0;
  throw Error(Stage::plan, "search.none",
              refused              ? key_in_search(*first, "ranks")
              : priced.shallow > 0 ? "schedules"
                                   : "ranks",
              none_possible(request, join(reasons, "; ")), join(hints, "; "));
}

void refuse_whole(const SearchRequest& request, const WholePlans& whole, std::int64_t candidates) {
  auto limit = static_cast<double>(request.memory);
  const auto host_limit = static_cast<double>(request.machine->host().bytes);
  const auto nearest = std::min_element(
      whole.all().begin(), whole.all().end(),
      [&](const FoundPlan& a, const FoundPlan& b) { return filled(a, limit) < filled(b, limit); });
  if (nearest == whole.all().end()) {
    const Problem* first = whole.refusal();
    std::string why = fmt::format("of {} candidates none can be planned whole", candidates);
    if (first != nullptr) why += ", the first as " + first->message;
    throw Error(Stage::plan, "search.none",
                first != nullptr ? key_in_search(*first, "strategies") : "strategies",
                none_possible(request, why),
                first != nullptr && !first->hint.empty()
                    ? "of the first that was refused: " + first->hint
                    : "allow more strategies, microbatches or schedules");
  }
  const auto bytes = [](double count) { return format_bytes(count); };
  limit = static_cast<double>(nearest->predicted.bound());  // limit of the fullest device
  const auto peak = static_cast<double>(nearest->predicted.fullest().memory.peak);
  const std::string none =
      fmt::format("none of {} candidates fits {} ranks of {}; the nearest is {}", candidates,
                  request.ranks, bytes(limit), settings_text(*nearest));
  if (peak <= limit && !nearest->predicted.host_fits()) {
    const auto host = static_cast<double>(nearest->predicted.host_needed);
    throw Error(Stage::plan, "search.memory", "cluster.host.capacity",
                fmt::format("cluster.host.capacity: {}: {} in the host memory of a node, {} too "
                            "much",
                            none, bytes(host), bytes(host - host_limit)),
                fmt::format("more nodes, or nodes with {} of host memory each", bytes(host)));
  }
  throw Error(Stage::plan, "search.memory", "memory",
              fmt::format("memory: {}: {}, {} too much", none, bytes(peak), bytes(peak - limit)),
              memory_hint(*nearest, whole.all(), limit, host_limit));
}

void refuse_running_out(const SearchRequest& request, const FoundPlan& nearest,
                        std::int64_t candidates) {
  const auto in_use = static_cast<double>(nearest.predicted.most_reported().in_use());
  const auto limit = static_cast<double>(nearest.predicted.most_reported().device.bytes);
  throw Error(
      Stage::plan, "search.memory", "memory",
      fmt::format("memory: of {} candidates, every one that fits would run out of a device's {} "
                  "under the stack {}; the nearest is {}: {} in use, {} too much",
                  candidates, format_bytes(limit), request.machine->stack().name,
                  settings_text(nearest), format_bytes(in_use), format_bytes(in_use - limit)),
      fmt::format("devices with {} each, or more ranks", format_bytes(in_use)));
}

namespace {

std::string step_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

// The number of the kind of change between two candidates; 0: several kinds, or none.
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

int WholePlans::fastest_like(const SearchCandidate& of, int place) const {
  const SearchCandidate& like = candidate(place);
  int fastest = place;
  if (like.microbatch != of.microbatch) return fastest;
  for (const int other : fitting_) {
    const SearchCandidate& one = candidate(other);
    if (change(of, one) != change(of, like) || one.data != like.data) continue;
    const auto at = static_cast<std::size_t>(fastest);
    if (!all_[at].fits || all_[static_cast<std::size_t>(other)].predicted.step_seconds <
                              all_[at].predicted.step_seconds)
      fastest = other;
  }
  return fastest;
}

std::string settings_text(const FoundPlan& found) {
  return Settings{found.plan, found.microbatch, lua_text(found.recompute),
                  found.offload == "none" ? "" : lua_text(found.offload)}
      .text();
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
  Settings changed;
  if (other.plan != best.plan) changed.plan = other.plan;
  if (other.microbatch != best.microbatch) changed.microbatch = other.microbatch;
  if (other.recompute != best.recompute) changed.recompute = lua_text(other.recompute);
  if (other.offload != best.offload) changed.offload = lua_text(other.offload);
  const std::string what = changed.text();
  if (!other.fits) {
    const std::int64_t peak = other.predicted.fullest().memory.peak;
    memory = std::min(memory, other.predicted.bound());  // limit of the fullest device
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
  std::map<int, SearchCandidate> found;  // by kind of change; `all` has the fastest first
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

// What a rank holds by category, the most first: "optimizer 3 GiB, parameters 1 GiB".
static std::string held_text(const MemoryForecast& memory) {
  std::vector<std::pair<std::int64_t, std::string>> held;
  for (std::size_t c = 0; c < category_count; ++c) {
    if (static_cast<Category>(c) == Category::host) continue;
    if (memory.bytes[c] > 0) held.emplace_back(memory.bytes[c], name_of(static_cast<Category>(c)));
  }
  std::sort(held.rbegin(), held.rend());
  std::vector<std::string> texts;
  for (const auto& [count, name] : held)
    texts.push_back(fmt::format("{} {}", name, memory_text(count)));
  return join(texts);
}

std::string memory_hint(const FoundPlan& nearest, const std::vector<FoundPlan>& all, double limit,
                        double host_limit) {
  const MemoryForecast& most = nearest.predicted.fullest().memory;
  std::string hint = fmt::format(
      "devices with {} each, or more ranks under strategies that share out what fills them ({})",
      memory_text(most.peak), held_text(most));
  const auto kept_out = std::find_if(all.begin(), all.end(), [&](const FoundPlan& one) {
    return static_cast<double>(one.predicted.fullest().memory.peak) <= limit &&
           !one.predicted.host_fits();
  });
  if (kept_out == all.end()) return hint;
  return hint +
         fmt::format("; {} would fit the devices, and takes {} in the host memory of a node, of {}",
                     settings_text(*kept_out), memory_text(kept_out->predicted.host_needed),
                     format_bytes(host_limit));
}

}  // namespace mw
