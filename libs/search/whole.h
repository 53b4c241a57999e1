// Candidates of a search, planned whole and priced by the simulation of all stages; and what a
// search says of them: why the best one is the best, or why there is none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "search/price.h"
#include "search/search.h"

namespace mw {

class WholePlans {
 public:
  // `planned`: called after each that was not refused.
  WholePlans(const SearchRequest& request, const SearchSpace& space, std::function<void()> planned);

  // The candidate's place in `all`, or -1 if it is refused; planned once. Throws Stopped.
  int plan(const SearchCandidate& candidate);
  // Prices the plan in this place with its stages balanced for the machine
  // (predict/stage_layout.h), as whoever writes it has them; before, they are even. Whether that
  // changes it.
  bool balance(int place);
  // The place of the fastest plan that fits and differs from the candidate in the same one thing as
  // the plan in this place: the closed form, by which neighbours are chosen, balances stages by
  // whole layers alone. It is the place itself where none is faster, and where the microbatch
  // differs.
  int fastest_like(const SearchCandidate& of, int place) const;
  const std::vector<FoundPlan>& all() const { return all_; }
  std::vector<FoundPlan> take() { return std::move(all_); }
  const SearchCandidate& candidate(int place) const { return candidates_.at(place); }
  // Places of those that fit.
  const std::vector<int>& fitting() const { return fitting_; }
  // Why the first that was refused was; null: none was.
  const Problem* refusal() const { return refusal_ ? &*refusal_ : nullptr; }

 private:
  PlanRequest request_of(const SearchCandidate& candidate, const Json& entries);

  const SearchRequest& request_;
  const SearchSpace& space_;
  const std::function<void()> planned_;
  std::map<decltype(SearchCandidate().key()), int> places_;  // -1: refused
  std::vector<FoundPlan> all_;
  std::vector<SearchCandidate> candidates_;  // of `all_`
  std::vector<bool> balanced_;               // likewise
  std::vector<int> fitting_;
  std::optional<Problem> refusal_;
  std::map<Json, StrategyChoice> choices_;
};

// No candidate is possible. `first`: of what strategies or the model refused; null: nothing.
// Throws Error (search.batch, search.microbatch or search.none).
[[noreturn]] void refuse_all(const SearchRequest& request, const SearchSpace& space,
                             const PricedCandidates& priced, const Problem* first);

// None of so many candidates that were planned whole fits, or none could be. Throws Error
// (search.memory or search.none).
[[noreturn]] void refuse_whole(const SearchRequest& request, const WholePlans& whole,
                               std::int64_t candidates);

// The software runs out of memory under each plan that fits by the program's own bytes; `nearest`
// is the best of these. Throws Error (search.memory).
[[noreturn]] void refuse_running_out(const SearchRequest& request, const FoundPlan& nearest,
                                     std::int64_t candidates);

// The share of what there is that it takes, of a device's `limit` bytes or of a host's (0: not
// known).
double filled(const FoundPlan& found, double limit);

// "plan = { dp(8) }, microbatch = 4, recompute = \"none\"".
std::string settings_text(const FoundPlan& found);
// "1.21 s a step: 81 % compute, 7 % tp exposed, 12 % bubble; 61 GiB of 80 GiB a rank".
std::string what_limits(const FoundPlan& found);
// "plan = …: +12.0 %", or "does not fit, needs 92 GiB of 80 GiB".
std::string what_loses(const FoundPlan& best, const FoundPlan& other, std::int64_t memory);

// Candidates that differ from it in one thing: the ways inside a layer, the stages, what splits the
// batch, the microbatch, what is computed again, the schedule. Of each such change the fastest by
// the closed form, whether it fits or not; of microbatches the next smaller and the next larger.
std::vector<SearchCandidate> neighbours(const SearchCandidate& of,
                                        const std::vector<SearchCandidate>& all);

// What to do where none fits a device's memory of `limit` bytes, `nearest` by the least: what fills
// a rank, and which of `all` the host memory of a node keeps out (0: what it holds is not known).
std::string memory_hint(const FoundPlan& nearest, const std::vector<FoundPlan>& all, double limit,
                        double host_limit);

}  // namespace mw
