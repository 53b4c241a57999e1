// The proof of a plan, as a check that plans pass before they are run or shown.
#pragma once

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "prove/prove.h"

namespace mw {

// Proves the plan's programs. Where the proof fails, but the plan without its passes can be proved,
// the refusals name the first pass with which it fails (Refusal::by, key).
Proof prove_plan(const Plan& plan, const ProveOptions& options = {});

// A PlanCheck. Adds a problem of Stage::plan for each refusal of the proof. Where the plan is
// proved, tries the lemmas of the proof (prove/lemmas/lemmas.h) and adds a problem for each that an
// op or an optimizer breaks.
void check_proved(const Plan& plan, Problems& problems);

// While an object lives, check_proved() on this thread tries no lemmas: for the kit, which tries
// ops itself and reports more.
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
