// Proves plans, and finds the pass without which a plan could be proved.
#include "prove/proved.h"

#include <fmt/format.h>

#include "prove/lemmas/lemmas.h"

namespace mw {
namespace {

// Whether the plan can be proved with only its first `passes` passes.
bool proves_with(const Plan& plan, int passes, const ProveOptions& options) {
  PlanRequest request = plan.request;
  request.schedule = plan.schedule;
  request.first_passes = passes;
  Problems problems;
  try {
    const auto made = make_plan(request, problems);
    return made && problems.empty() && prove(made->programs, options).proved();
  } catch (const Error&) {
    return false;
  }
}

// The first pass with which the plan cannot be proved; null: it cannot be without any pass either.
const PassRun* culprit(const Plan& plan, const ProveOptions& options) {
  const int all = static_cast<int>(plan.passes.size());
  if (all == 0 || !proves_with(plan, 0, options)) return nullptr;
  int passes = 1;
  while (passes < all && proves_with(plan, passes, options)) ++passes;
  return &plan.passes[passes - 1];
}

}  // namespace

Proof prove_plan(const Plan& plan, const ProveOptions& options) {
  Proof proof = prove(plan.programs, options);
  if (const auto& outer = plan.programs.front().outer; outer && proof.proved()) {
    for (const OuterEvent& event : kinds_of_outer_events(*outer))
      prove_outer_steps(outer_plan(plan, event)->programs, event, proof);
    if (proof.proved())
      proof.notes.emplace_back(
          "between outer steps each replica is one rank's training, on its rows");
  }
  if (proof.proved()) return proof;
  const PassRun* pass = culprit(plan, options);
  if (pass == nullptr) return proof;
  for (Refusal& refusal : proof.refusals) {
    refusal.key = pass->place;
    refusal.by = fmt::format("the pass \"{}\"", pass->name);
    if (!pass->strategy.empty()) refusal.by += " of " + pass->strategy;
    if (!pass->place.empty()) refusal.by += fmt::format(" ({})", pass->place);
  }
  return proof;
}

namespace {
thread_local bool tries_ops = true;
}  // namespace

WithoutLemmas::WithoutLemmas() : before_(tries_ops) {
  tries_ops = false;
}
WithoutLemmas::~WithoutLemmas() {
  tries_ops = before_;
}

void check_proved(const Plan& plan, Problems& problems) {
  const Proof proof = prove_plan(plan);
  for (const Refusal& refusal : proof.refusals) problems.add(refusal.problem());
  if (!proof.proved() || !tries_ops) return;
  // Tests have tried the ops of this library as its own models use them (tests/lemmas).
  const Model& model = *plan.request.model;
  LemmaOptions options;
  options.of_plugins_alone = is_built_in(typeid(model)) && model.made_of().is_null();
  for (const Problem& failure : check_lemmas(plan.programs, proof.lemmas, options).failures)
    problems.add(failure);
}

}  // namespace mw
