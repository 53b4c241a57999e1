// Searches the best mix: prices all candidates, plans the best whole, and says what limits them.
#include "predict/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/text.h"
#include "predict/search_price.h"
#include "predict/search_why.h"

namespace mw {
namespace {

// The closed form's memory errs by so much: what is above the limit by less is planned all the
// same, and returned if it fits.
constexpr double doubted = 1.1;
// Plans whose times differ by less are equally fast: then the simplest is recommended.
constexpr double equally_fast = 1.01;
// After Ctrl-C so many are still planned whole, until one fits.
constexpr int after_stop = 8;

// What a reader of the plan has to know: its strategies, their options, what else is set, and the
// kinds of collectives that follow (a sum over data is one, its scatter and gather are two).
std::size_t complexity(const FoundPlan& found) {
  std::size_t parts = found.predicted.communication.size();
  for (const Json& entry : found.entries) parts += entry.size();
  return parts + (found.recompute == "none" ? 0 : 1) + (found.offload == "none" ? 0 : 1);
}

bool same_settings(const FoundPlan& a, const FoundPlan& b) {
  return a.entries == b.entries && a.microbatch == b.microbatch && a.recompute == b.recompute &&
         a.offload == b.offload;
}

class MixSearch {
 public:
  explicit MixSearch(const SearchRequest& request)
      : request_(request),
        begun_(seconds_now()),
        space_(search_space(request)),
        terms_(request, space_) {}

  SearchOutcome run() {
    PricedCandidates priced = price_candidates(request_, space_, terms_);
    all_ = std::move(priced.all);
    out_.candidates = static_cast<std::int64_t>(all_.size());
    out_.refused = priced.refused;
    out_.probes = terms_.probes();
    out_.interrupted = priced.interrupted;
    out_.pricing_seconds = priced.pricing_seconds;
    out_.probing_seconds = terms_.spent();
    if (all_.empty() && !out_.interrupted) refuse_all(priced.divides);
    std::sort(all_.begin(), all_.end(), [](const SearchCandidate& a, const SearchCandidate& b) {
      return std::pair(a.seconds, a.bytes) < std::pair(b.seconds, b.bytes);
    });
    const auto limit = static_cast<double>(request_.memory);
    out_.fitting = std::count_if(all_.begin(), all_.end(),
                                 [&](const SearchCandidate& c) { return c.bytes <= limit; });
    const double checking = seconds_now();
    try {
      check_best(limit);
      if (fit_.empty()) refuse_memory();
      check_simple(limit);
      check_edge(limit);
      finish();
      out_.why = why();
    } catch (const Stopped&) {
      out_.interrupted = true;
      after_stopping(limit);
    }
    out_.checking_seconds = seconds_now() - checking;
    out_.seconds = seconds_now() - begun_;
    return std::move(out_);
  }

 private:
  // Plans it whole; null if it is refused. Each once.
  const FoundPlan* whole(const SearchCandidate& candidate) {
    if (const auto known = done_.find(candidate.key()); known != done_.end())
      return known->second < 0 ? nullptr : &out_.checked[known->second];
    throw_if_stopped();
    FoundPlan found;
    const auto entries =
        entries_of(candidate.stages_side < 0 ? nullptr : &space_.stages[candidate.stages_side],
                   candidate.stages, candidate.data < 0 ? nullptr : &space_.data[candidate.data],
                   candidate.data_ways, space_.inner[candidate.inner]);
    found.entries = entries;
    found.plan = plan_text(entries);
    found.microbatch = candidate.microbatch;
    found.recompute = terms_.recompute_of(candidate.policy).written;
    found.offload = terms_.offload_of(candidate.policy).written;
    found.closed_form_seconds = candidate.seconds;
    found.closed_form_bytes = candidate.bytes;
    PlanRequest request = request_.base.plan->request;
    request.microbatch = candidate.microbatch;
    request.recompute = terms_.recompute_of(candidate.policy).policy;
    request.offload = terms_.offload_of(candidate.policy).policy;
    std::shared_ptr<const Plan> plan;
    Problems problems;
    try {
      request.strategies = choices_of(request_, entries, choices_);
      plan = make_plan(request, problems);
      if (plan) check_placed(*plan, *request_.machine, problems);
    } catch (const Stopped&) {
      throw;
    } catch (const Error&) {  // of a strategy's own
    }
    if (!plan || !problems.empty()) {
      done_.emplace(candidate.key(), -1);
      return nullptr;
    }
    found.predicted = predict(*plan, *request_.machine);
    found.fits = found.predicted.fullest().memory.peak <= request_.memory && found.predicted.fits;
    done_.emplace(candidate.key(), static_cast<int>(out_.checked.size()));
    candidates_.push_back(candidate);
    out_.checked.push_back(std::move(found));
    if (out_.checked.back().fits) fit_.push_back(out_.checked.size() - 1);
    report();
    return &out_.checked.back();
  }

  void report() {
    if (!request_.progress || seconds_now() - told_ < 1) return;
    told_ = seconds_now();
    request_.progress(fmt::format("search: {} of {} candidates planned whole, {} fit",
                                  out_.checked.size(), all_.size(), fit_.size()));
  }

  void check_best(double limit) {
    out_.checked.reserve(1024);  // pointers into it stay
    int tried = 0;
    for (const SearchCandidate& candidate : all_) {
      const bool enough = static_cast<int>(fit_.size()) >= request_.best;
      if (tried >= request_.checked && (enough || tried >= 8 * request_.checked)) break;
      if (candidate.bytes > doubted * limit) continue;
      whole(candidate);
      ++tried;
    }
    if (!fit_.empty()) return;
    for (const SearchCandidate& candidate : lightest(request_.checked)) whole(candidate);
  }

  std::vector<SearchCandidate> lightest(int count) const {
    std::vector<SearchCandidate> list = all_;
    const auto few = std::min<std::size_t>(list.size(), static_cast<std::size_t>(count));
    std::partial_sort(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(few), list.end(),
                      [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    list.resize(few);
    return list;
  }

  // The best of what was priced so far: some are planned whole, until one fits.
  void after_stopping(double limit) {
    forget_stop_request();  // once more ends this too
    try {
      int tried = 0;
      for (const SearchCandidate& candidate : all_) {
        if (!fit_.empty() || tried >= after_stop) break;
        if (candidate.bytes > limit) continue;
        whole(candidate);
        ++tried;
      }
    } catch (const Stopped&) {
    }
    request_stop();
    finish();
    if (!out_.best.empty()) out_.why = what_limits(out_.best.front());
  }

  // Of those about as fast as the fastest, some with the fewest words.
  void check_simple(double limit) {
    std::vector<std::pair<std::size_t, const SearchCandidate*>> near;
    double fastest = 0;
    for (const SearchCandidate& candidate : all_) {
      if (candidate.bytes > limit) continue;
      if (fastest == 0) fastest = candidate.seconds;
      if (candidate.seconds > 1.02 * fastest) break;
      near.emplace_back(words(candidate), &candidate);
    }
    const auto few = std::min<std::size_t>(near.size(), 8);
    std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(few), near.end());
    for (std::size_t i = 0; i < few; ++i) whole(*near[i].second);
  }

  std::size_t words(const SearchCandidate& candidate) const {
    std::size_t count = 0;
    for (const Json& entry : space_.inner[candidate.inner].entries) count += entry.size();
    if (candidate.data >= 0) count += 2 + space_.data[candidate.data].options.size();
    if (candidate.stages > 1)
      count += 3 + (space_.stages[candidate.stages_side].chunks > 1 ? 1 : 0);
    if (terms_.recompute_of(candidate.policy).written != "none") ++count;
    if (terms_.offload_of(candidate.policy).written != "none") ++count;
    return count;
  }

  // A few of those that no other one beats in both time and memory.
  void check_edge(double limit) {
    std::vector<SearchCandidate> edge;
    double least = doubted * limit;
    for (const SearchCandidate& candidate : all_) {
      if (candidate.bytes > 0.95 * least) continue;
      least = candidate.bytes;
      edge.push_back(candidate);
    }
    const std::size_t few = 8, each = std::max<std::size_t>(1, edge.size() / few);
    for (std::size_t i = 0; i < edge.size(); i += each) whole(edge[i]);
  }

  void finish() {
    out_.best.clear();
    out_.edge.clear();
    std::vector<const FoundPlan*> found;
    for (const std::size_t place : fit_) found.push_back(&out_.checked[place]);
    std::stable_sort(found.begin(), found.end(), [](const FoundPlan* a, const FoundPlan* b) {
      return a->predicted.step_seconds < b->predicted.step_seconds;
    });
    std::int64_t least = INT64_MAX;
    for (const FoundPlan* one : found) {
      const std::int64_t peak = one->predicted.fullest().memory.peak;
      if (peak >= least) continue;
      least = peak;
      out_.edge.push_back(*one);
    }
    const auto slower = std::find_if(found.begin(), found.end(), [&](const FoundPlan* one) {
      return one->predicted.step_seconds > equally_fast * found.front()->predicted.step_seconds;
    });
    const auto simplest = std::min_element(
        found.begin(), slower,
        [](const FoundPlan* a, const FoundPlan* b) { return complexity(*a) < complexity(*b); });
    if (simplest != found.end()) std::rotate(found.begin(), simplest, simplest + 1);
    for (const FoundPlan* one : found) {
      if (static_cast<int>(out_.best.size()) < request_.best) out_.best.push_back(*one);
    }
  }

  // What limits the best one, and what its neighbours lose.
  std::string why() {
    if (out_.best.empty()) return "";
    std::string text = what_limits(out_.best.front());
    const auto best =
        std::find_if(out_.checked.begin(), out_.checked.end(),
                     [&](const FoundPlan& one) { return same_settings(one, out_.best.front()); });
    const SearchCandidate own =
        candidates_.at(static_cast<std::size_t>(best - out_.checked.begin()));
    for (const SearchCandidate& other : neighbours(own, all_)) {
      const FoundPlan* found = whole(other);
      if (found != nullptr) text += "\n" + what_loses(out_.best.front(), *found, request_.memory);
    }
    const FoundPlan before = out_.best.front();
    finish();  // a neighbour may be faster than all that were checked
    return same_settings(out_.best.front(), before) ? text : why();
  }

  [[noreturn]] void refuse_all(bool divides) const {
    const std::int64_t batch = request_.base.plan->request.batch;
    if (!divides) {
      const std::int64_t above = (batch / request_.ranks + 1) * request_.ranks;
      throw Error(Stage::plan, "search.batch", "batch",
                  fmt::format("batch: {} cannot be split over the data's ranks of any mix of {} "
                              "ranks",
                              plural(batch, "sequence"), request_.ranks),
                  fmt::format("nearest: batch = {}", above));
    }
    throw Error(
        Stage::plan, "search.none", "strategies",
        fmt::format("no mix of {} on {} ranks is possible: {} were refused",
                    join(request_.strategies), request_.ranks, out_.refused),
        "allow more strategies, microbatches or schedules, or take another number of ranks");
  }

  [[noreturn]] void refuse_memory() const {
    const FoundPlan* nearest = nullptr;
    for (const FoundPlan& one : out_.checked) {
      if (nearest == nullptr ||
          one.predicted.fullest().memory.peak < nearest->predicted.fullest().memory.peak)
        nearest = &one;
    }
    if (nearest == nullptr) refuse_all(true);
    const auto peak = static_cast<double>(nearest->predicted.fullest().memory.peak);
    const auto limit = static_cast<double>(request_.memory);
    throw Error(
        Stage::plan, "search.memory", "memory",
        fmt::format("memory: none of {} candidates fits {} ranks of {}; the nearest is "
                    "{}: {}, {} too much",
                    out_.candidates, request_.ranks, format_bytes(limit), settings_text(*nearest),
                    format_bytes(peak), format_bytes(peak - limit)),
        fmt::format("{} times the ranks, or as many devices with {} each",
                    peak > 2 * limit ? "4" : "2", format_bytes(peak)));
  }

  const SearchRequest& request_;
  const double begun_;
  const SearchSpace space_;
  SearchTerms terms_;
  std::vector<SearchCandidate> all_;
  // Places in `checked`, -1 where it was refused.
  std::map<decltype(SearchCandidate().key()), int> done_;
  std::vector<SearchCandidate> candidates_;  // of `checked`
  std::vector<std::size_t> fit_;             // places
  std::map<Json, StrategyChoice> choices_;
  double told_ = seconds_now();
  SearchOutcome out_;
};

}  // namespace

SearchOutcome search(const SearchRequest& request) {
  return MixSearch(request).run();
}

}  // namespace mw
