// Says why a search has nothing to recommend, and what comes nearest.
#include "search/refuse.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "meshwright/engine/text.h"
#include "search/why.h"

namespace mw {
namespace {

// No microbatch that was asked for divides what a rank has.
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
                  request.ranks, request.base.plan->request.batch, join(own)),
      "nearest: microbatch = " + nearest);
}

// The numbers of ranks, below and above, of which there is a mix; none if they are further away
// than is looked.
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

// Of a problem of a plan that the search made: what of the search's own table is at fault, if any
// of it is.
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
  return std::max(static_cast<double>(p.fullest().memory.peak) / limit,
                  p.host_limit > 0
                      ? static_cast<double>(p.host_needed) / static_cast<double>(p.host_limit)
                      : 0);
}

void refuse_all(const SearchRequest& request, const SearchSpace& space,
                const PricedCandidates& priced, const Problem* first) {
  const std::int64_t batch = request.base.plan->request.batch;
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
        priced.shallow, priced.shallow == 1 ? "has" : "have", request.base.plan->graph->layers));
  }
  reasons.insert(reasons.end(), space.passed.begin(), space.passed.end());
  reasons.insert(reasons.end(), priced.passed.begin(), priced.passed.end());
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
  const auto limit = static_cast<double>(request.memory);
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

}  // namespace mw
