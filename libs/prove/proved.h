// The proof of a plan, as a check that plans pass before they are run or shown.
#pragma once

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "prove/prove.h"

namespace mw {

// Proves the plan's programs. Where that fails and a pass of a strategy has brought it about, the
// refusals say so (Refusal::by, key).
Proof prove_plan(const Plan& plan, const ProveOptions& options = {});

// A PlanCheck: what keeps the plan from being proved is a problem of Stage::plan, and so is what an
// op or an optimizer of a plugin breaks of that which the proof takes for granted
// (prove/lemmas/lemmas.h).
void check_proved(const Plan& plan, Problems& problems);

// While it lives, this thread's plans are proved without their ops being tried: for the kit, which
// tries them itself and says more.
class WithoutLemmas {
 public:
  WithoutLemmas();
  ~WithoutLemmas();
  WithoutLemmas(const WithoutLemmas&) = delete;
  WithoutLemmas& operator=(const WithoutLemmas&) = delete;

 private:
  const bool before_;
};

}  // namespace mw
