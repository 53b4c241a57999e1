// Candidates of a search, planned whole and priced by the simulation of all stages.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "search/price.h"

namespace mw {

class WholePlans {
 public:
  // `planned`: called after each that was not refused.
  WholePlans(const SearchRequest& request, const SearchSpace& space, const SearchProbes& probes,
             std::function<void()> planned);

  // The candidate's place in `all`, or -1 if it is refused; planned once. Throws Stopped.
  int plan(const SearchCandidate& candidate);
  const std::vector<FoundPlan>& all() const { return all_; }
  std::vector<FoundPlan> take() { return std::move(all_); }
  const SearchCandidate& candidate(int place) const { return candidates_.at(place); }
  // Places of those that fit.
  const std::vector<int>& fitting() const { return fitting_; }
  // Why the first that was refused was; null: none was.
  const Problem* refusal() const { return refusal_ ? &*refusal_ : nullptr; }

 private:
  const SearchRequest& request_;
  const SearchSpace& space_;
  const SearchProbes& probes_;
  const std::function<void()> planned_;
  std::map<decltype(SearchCandidate().key()), int> places_;  // -1: refused
  std::vector<FoundPlan> all_;
  std::vector<SearchCandidate> candidates_;  // of `all_`
  std::vector<int> fitting_;
  std::optional<Problem> refusal_;
  std::map<Json, StrategyChoice> choices_;
};

}  // namespace mw
