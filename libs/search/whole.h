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
  // `planned`: called after each plan that was not refused.
  WholePlans(const SearchRequest& request, const SearchSpace& space, std::function<void()> planned);

  // Plans the candidate, once. Returns its index in all(), or -1 if it is refused. Throws Stopped.
  int plan(const SearchCandidate& candidate);
  // Plans and prices the plan at `place` anew with its stages balanced for the machine
  // (predict/stage_layout.h), as a script that names it has them; before, they are even. Returns
  // whether that changed the plan.
  bool balance(int place);
  // The index in all() of the fastest plan that fits and differs from the candidate in the same one
  // thing as the plan at `place`: the closed form, by which neighbours are chosen, balances stages
  // by whole layers alone. `place` itself where none is faster, and where the microbatch differs.
  int fastest_like(const SearchCandidate& of, int place) const;
  const std::vector<FoundPlan>& all() const { return all_; }
  std::vector<FoundPlan> take() { return std::move(all_); }
  const SearchCandidate& candidate(int place) const { return candidates_.at(place); }
  // Indices in all() of the plans that fit.
  const std::vector<int>& fitting() const { return fitting_; }
  // Why the first refused plan was refused; null: none was.
  const Problem* refusal() const { return refusal_ ? &*refusal_ : nullptr; }

 private:
  PlanRequest request_of(const SearchCandidate& candidate) const;

  const SearchRequest& request_;
  const SearchSpace& space_;
  const std::function<void()> planned_;
  // Index in all(), by candidate; -1: refused.
  std::map<decltype(SearchCandidate().key()), int> places_;
  std::vector<FoundPlan> all_;
  std::vector<SearchCandidate> candidates_;  // candidates of the plans in `all_`
  std::vector<bool> balanced_;               // whether the plans in `all_` have balanced stages
  std::vector<int> fitting_;
  std::optional<Problem> refusal_;
  std::map<Json, StrategyChoice> choices_;
};

// Reports that no candidate is possible. `first`: the first refusal by a strategy or the model;
// null: there was none. Throws Error (search.batch, search.microbatch or search.none).
[[noreturn]] void refuse_all(const SearchRequest& request, const SearchSpace& space,
                             const PricedCandidates& priced, const Problem* first);

// Reports that, of `candidates` candidates, none that was planned whole fits, or none could be
// planned. Throws Error (search.memory or search.none).
[[noreturn]] void refuse_whole(const SearchRequest& request, const WholePlans& whole,
                               std::int64_t candidates);

// Reports that the software runs out of memory under each plan that fits by the program's own
// bytes; `nearest` is the best of these plans. Throws Error (search.memory).
[[noreturn]] void refuse_running_out(const SearchRequest& request, const FoundPlan& nearest,
                                     std::int64_t candidates);

// The share of a device's `limit` bytes, or of the host's memory, that the plan takes, whichever is
// higher. A host's memory that is not known does not count.
double filled(const FoundPlan& found, double limit);

// The plan and its settings: "plan = { dp(8) }, microbatch = 4, recompute = \"none\"".
std::string settings_text(const FoundPlan& found);
// What the step is spent on: "1.21 s a step: 81 % compute, 12 % bubble; 61 GiB a rank".
std::string what_limits(const FoundPlan& found);
// What another plan loses against the best: "plan = …: +12.0 %", or "plan = …: does not fit, needs
// 92 GiB of 80 GiB".
std::string what_loses(const FoundPlan& best, const FoundPlan& other, std::int64_t memory);

// Candidates that differ from `of` in one thing: the ways inside a layer, the stages, what splits
// the batch, the microbatch, what is recomputed, the schedule. For each such change the fastest by
// the closed form, whether it fits or not; for microbatches the next smaller and the next larger.
std::vector<SearchCandidate> neighbours(const SearchCandidate& of,
                                        const std::vector<SearchCandidate>& all);

// Advice where no plan fits a device's memory of `limit` bytes, and `nearest` exceeds it least:
// what fills a rank, and which of `all` only the host memory of a node keeps out (`host_limit`; 0:
// not known).
std::string memory_hint(const FoundPlan& nearest, const std::vector<FoundPlan>& all, double limit,
                        double host_limit);

}  // namespace mw
