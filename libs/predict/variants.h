// Variants of a plan, for whoever looks for another plan that fits or is faster: a changed request,
// its plan, what that needs and takes, and the change as a script writes it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "predict/prediction.h"

namespace mw {

// What `make` returns. Where it throws an Error, the result is empty, and `problems` (null: nobody
// asks) has the Error's; one that ends everything (ends_all) is thrown on.
template <class Make>
auto unless_refused(const Make& make, Problems* problems = nullptr) -> decltype(make()) {
  try {
    return make();
  } catch (const Error& error) {
    if (ends_all(error)) throw;
    if (problems != nullptr) problems->add(error);
    return {};
  }
}

using PlanMaker = std::function<std::shared_ptr<const Plan>(const PlanRequest&, Problems&)>;

// The request's plan; null, with problems, where the planner or a strategy refuses it.
std::shared_ptr<const Plan> plan_if_possible(const PlanRequest& request,
                                             Problems* problems = nullptr,
                                             const PlanMaker& make = make_plan);

// A plan with what is predicted for it on a machine.
struct PredictedPlan {
  std::shared_ptr<const Plan> plan;  // null: there is none
  Prediction predicted;
};

// Settings of a plan as a script writes them. What is empty, or 0, is left out.
struct Settings {
  std::string plan;  // "{ tp(8) }"
  std::int64_t microbatch = 0;
  std::string recompute, offload;  // "\"full\""
  // "plan = { tp(8) }, microbatch = 2, recompute = \"full\"".
  std::string text() const;
};

// A change of a plan's settings. What is null, 0 or empty stays as it is.
struct Change {
  const std::vector<StrategyChoice>* strategies = nullptr;
  std::int64_t microbatch = 0;
  std::string recompute = {};  // "selective" or "full"

  PlanRequest of(PlanRequest request) const;
  // The changed request's settings. Strategies that stay are named too, so that all of it can be
  // copied, unless they have functions.
  std::string text(const PlanRequest& request) const;
};

struct Variant : PredictedPlan {
  PlanRequest request;
  std::string text = {};  // the change as a script writes it
  std::int64_t need = 0;  // bytes
};

// Plans variants one after another, for the first that needs no more than `limit` bytes.
struct Variants {
  std::int64_t limit = 0;
  double work_of_refused = 0;  // Plan::work for which a refused plan counts
  double work = 0;             // of the plans made so far
  int tried = 0;
  std::optional<Variant> found, lowest;  // the first that fits; the one that needs least

  // Whether the plans made so far took so much work that no more are to be made.
  bool too_long() const { return work > most_search; }
  // The request's plan; null where it is refused. Throws Stopped.
  std::shared_ptr<const Plan> plan(const PlanRequest& request, const PlanMaker& make = make_plan);
  // Keeps a variant that was planned, if it fits or needs least.
  void keep(Variant variant);
};

}  // namespace mw
