// The verb mw.verify: compares a plan, or each plan that steps of a run have, with one rank.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "app/stuck_end.h"
#include "app/verbs.h"
#include "check/verify.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/rank_calls.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/text.h"
#include "predict/memory_limit.h"
#include "predict/shared_cores.h"
#include "record/run_writer.h"
#include "script/identity.h"

namespace mw {

// Verifies a run. If its steps have several plans, verifies each by itself until one is not equal.
// If all are, returns the outcome with the largest error.
static VerifyOutcome verify_all(const RunSetup& setup) {
  if (!setup.step_plans) return verify(setup, 3, 1e-10, stop_flag());
  VerifyOutcome worst;
  for (const auto& plan : setup.step_plans->plans) {
    RunSetup one = setup;
    one.plan = plan;
    one.step_plans = nullptr;
    VerifyOutcome outcome = verify(one, 3, 1e-10, stop_flag());
    if (outcome.interrupted || !outcome.equal) return outcome;
    if (worst.worst.empty() || outcome.gradients > worst.gradients) worst = std::move(outcome);
  }
  return worst;
}

Json run_verify(const RunRequest& asked, const RunSetup& setup, Output& output) {
  const Plan& plan = *setup.plan;
  check_thread_ranks(plan, setup.processes);
  const std::string forced = check_verify_memory(asked, setup, this_device().memory);
  if (!forced.empty()) output.warn(forced);
  const VerifyOutcome outcome = [&] {
    const IfStuck if_stuck([&](const Error& error) { end_stuck(stuck_in_run(error), output); });
    return verify_all(setup);
  }();
  Json result;
  result["kind"] = "verify";
  result["status"] = name_of(outcome.interrupted ? RunStatus::interrupted : RunStatus::done);
  if (outcome.interrupted) {
    result["verdict"] = nullptr;
    result["plan"] = plan.mix();
    result["plan_hash"] = plan.hash();
    result.update(identity_of(asked, setup.seed));
    result["text"] = describe(outcome, plan.mix());
    return result;
  }
  result["verdict"] = verdict_of(outcome);
  result["plan"] = plan.mix();
  result["plan_hash"] = plan.hash();
  result.update(identity_of(asked, setup.seed));
  result["precision"] = "fp64";
  result["max_relative_error"] = {
      {"loss", outcome.loss}, {"gradients", outcome.gradients}, {"parameters", outcome.parameters}};
  result["worst"] = outcome.worst;
  result["first_divergence"] = outcome.diverged ? Json(outcome.first.op) : Json();
  result["divergence"] = outcome.diverged ? Json(describe(outcome.first)) : Json();
  const std::string note = note_of(outcome);
  result["note"] = note.empty() ? Json() : Json(note);
  result["steps"] = outcome.steps;
  std::string text = describe(outcome, plan.mix());
  if (setup.step_plans) {
    result["plans"] = setup.step_plans->plans.size();
    text += fmt::format("  of its steps' {}, {}\n",
                        plural(static_cast<std::int64_t>(setup.step_plans->plans.size()), "plan"),
                        outcome.equal ? "each by itself; this is the worst"
                                      : "this is the first that is not equal");
  }
  result["text"] = text;
  return result;
}

}  // namespace mw
