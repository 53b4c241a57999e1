// Finds, for a refused number of ways, the nearest numbers with which the plan would have been
// accepted, by trying them.
#include "plan/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/divisors.h"

namespace mw {
namespace {

constexpr std::size_t most_tried = 4;  // in each direction

// What a problem is and where: its words hold numbers, which another trial changes.
using Fault = std::pair<std::string, std::string>;
Fault fault_of(const Problem& problem) {
  return {problem.code, problem.key};
}

class Trial {
 public:
  Trial(const PlanRequest& request, const Problems& problems)
      : request_(request), problems_(problems) {
    for (const Problem& p : problems.list()) known_.insert(fault_of(p));
  }

  bool possible(const std::string& strategy) const {
    const StrategyChoice* choice = find(strategy);
    return choice != nullptr && choice->with_ways;
  }

  // Whether the plan with so many ways has no problem but others that it has anyway. Where the mesh
  // cannot be made, those are what it has with one way.
  bool accepts(const WrongWays& wrong, int ways) const {
    const std::optional<Problems> found = problems_with(wrong.strategy, ways);
    if (!found) return false;
    const Fault own = fault_of(problems_.list()[wrong.problem]);
    std::set<Fault> known = known_;
    if (wrong.all && ways != 1) {
      const std::optional<Problems> anyway = problems_with(wrong.strategy, 1);
      for (const Problem& p : anyway ? anyway->list() : std::vector<Problem>{}) {
        known.insert(fault_of(p));
      }
    }
    return (wrong.all && ways == 1) ||
           std::all_of(found->list().begin(), found->list().end(), [&](const Problem& p) {
             return fault_of(p) != own && known.count(fault_of(p)) > 0;
           });
  }

 private:
  // Nothing if the strategy does not take so many.
  std::optional<Problems> problems_with(const std::string& strategy, int ways) const {
    PlanRequest request = request_;
    request.placements_only = true;
    request.recompute = {};
    Problems found;
    try {
      StrategyChoice& choice = request.strategies[find(strategy) - request_.strategies.data()];
      choice = choice.with_ways(ways);
      make_plan(request, found);
    } catch (const Error&) {
      return std::nullopt;
    }
    return found;
  }

  const StrategyChoice* find(const std::string& strategy) const {
    const auto& list = request_.strategies;
    const auto found = std::find_if(list.begin(), list.end(), [&](const StrategyChoice& choice) {
      return choice.name == strategy;
    });
    return found == list.end() ? nullptr : &*found;
  }

  const PlanRequest& request_;
  const Problems& problems_;
  std::set<Fault> known_;
};

}  // namespace

WrongWays ways_near(const std::string& strategy, std::int64_t size, int ways, bool even) {
  WrongWays wrong;
  wrong.strategy = strategy;
  if (even) {
    for (std::int64_t w : divisors(size)) {
      if (w < ways) wrong.below.insert(wrong.below.begin(), static_cast<int>(w));
      if (w > ways && w <= Mesh::most_ranks) wrong.above.push_back(static_cast<int>(w));
    }
  } else {
    const auto last = static_cast<int>(std::min<std::int64_t>(size, Mesh::most_ranks));
    for (int w = std::min(ways - 1, last); w >= 1 && wrong.below.size() < most_tried; --w)
      wrong.below.push_back(w);
    for (int w = ways + 1; w <= last && wrong.above.size() < most_tried; ++w)
      wrong.above.push_back(w);
  }
  for (std::vector<int>* list : {&wrong.below, &wrong.above})
    list->resize(std::min(list->size(), most_tried));
  return wrong;
}

std::string hint_of(const WrongWays& wrong) {
  if (wrong.all) {
    std::vector<int> list(wrong.below.rbegin(), wrong.below.rend());
    list.insert(list.end(), wrong.above.begin(), wrong.above.end());
    return fmt::format("possible: {}", fmt::join(list, ", "));
  }
  std::string text;
  for (const std::vector<int>* list : {&wrong.below, &wrong.above}) {
    if (list->empty()) continue;
    text +=
        fmt::format("{}{}({})", text.empty() ? "nearest: " : ", ", wrong.strategy, list->front());
  }
  return text;
}

void try_nearest(const PlanRequest& request, const std::vector<WrongWays>& wrong,
                 Problems& problems) {
  if (request.placements_only || wrong.empty()) return;
  const Trial trial(request, problems);
  std::vector<Problem> list = problems.list();
  for (const WrongWays& about : wrong) {
    if (!trial.possible(about.strategy)) continue;
    WrongWays left = about;
    for (std::vector<int>* near : {&left.below, &left.above}) {
      bool found = false;
      std::erase_if(*near, [&](int ways) {
        if (found && !left.all) return false;  // the hint names the first
        const bool taken = trial.accepts(about, ways);
        found = found || taken;
        return !taken;
      });
    }
    const bool none = left.below.empty() && left.above.empty();
    list[about.problem].hint =
        none ? fmt::format(
                   "no other number near it goes with the rest of the plan; leave {} out, "
                   "or change what it meets",
                   about.strategy)
             : hint_of(left);
  }
  problems = {};
  for (Problem& problem : list) problems.add(std::move(problem));
}

}  // namespace mw
