// The verb mw.prove: proves that the programs of a plan, or of each plan that steps of a run have,
// compute what one rank would, or says at which instruction that fails.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "app/verbs.h"
#include "meshwright/engine/text.h"
#include "prove/lemmas/lemmas.h"
#include "prove/proved.h"
#include "script/identity.h"

namespace mw {
namespace {

Json json_of(const Lemma& lemma, const Graph& graph) {
  return {{"kind", lemma.kind},
          {"op", graph.ops().at(static_cast<std::size_t>(lemma.op)).name},
          {"piece", name_of(lemma.piece)},
          {"cut", lemma.cut},
          {"follow", lemma.follow},
          {"carried", lemma.carried},
          {"ring", lemma.ring}};
}

// Numbers that do not apply are null.
Json json_of(const Refusal& refusal) {
  const auto number = [](int n) { return n < 0 ? Json() : Json(n); };
  Json axes = Json::array();
  for (const AxisDifference& axis : refusal.axes)
    axes.push_back({{"axis", axis.axis}, {"needed", axis.needed}, {"found", axis.found}});
  return {{"code", refusal.code},
          {"key", refusal.key},
          {"stage", number(refusal.stage)},
          {"segment", number(refusal.segment)},
          {"run", number(refusal.run)},
          {"microbatch", number(refusal.microbatch)},
          {"instruction", number(refusal.instruction)},
          {"ring_step", number(refusal.ring_step)},
          {"slot", number(refusal.slot)},
          {"where", refusal.where},
          {"listed", refusal.listed},
          {"message", refusal.message},
          {"axes", axes},
          {"written", refusal.written},
          {"by", refusal.by},
          {"missing", refusal.missing},
          {"twice", refusal.twice},
          {"mend", refusal.mend}};
}

// A lemma that does not hold, as a refusal of the plan.
Refusal refusal_of(const Problem& failure) {
  Refusal refusal;
  refusal.code = failure.code;
  refusal.key = failure.key;
  refusal.message = failure.message;
  refusal.mend = failure.hint;
  return refusal;
}

struct Found {
  Proof proof;
  LemmaReport lemmas;
  const Plan* plan = nullptr;
  bool right() const { return proof.proved() && lemmas.failures.empty(); }
  // "proved" is said with what was not tried, as the proof assumes it.
  std::string verdict() const {
    if (!right()) return "refused";
    if (lemmas.not_checked.empty()) return "proved";
    return "proved, except: " + join(lemmas.not_checked, "; ");
  }
};

Found found_of(const Plan& plan, bool strict) {
  Found found{prove_plan(plan, {strict}), {}, &plan};
  if (!found.proof.proved()) return found;
  found.lemmas = check_lemmas(plan.programs, found.proof.lemmas);
  if (!strict) return found;
  for (const std::string& what : found.lemmas.not_checked) {
    found.lemmas.failures.push_back(
        {Stage::plan, "prove.untried", "", what,
         "mend the op so that it can be tried, or prove the plan without --strict"});
  }
  return found;
}

// Where the steps of a run have different plans, this is the proof of the first one that is
// refused, or else of the one with the most instructions.
Found found_of(const RunSetup& setup, bool strict) {
  if (!setup.step_plans) return found_of(*setup.plan, strict);
  Found most;
  for (const auto& plan : setup.step_plans->plans) {
    Found found = found_of(*plan, strict);
    const bool right = found.right();
    if (!right || most.plan == nullptr || found.proof.rules > most.proof.rules)
      most = std::move(found);
    if (!right) break;
  }
  return most;
}

// The text of a proof and its lemmas, and which of the run's plans it is about.
std::string text_of(const Found& found, const StepPlans* step_plans) {
  const LemmaReport& lemmas = found.lemmas;
  std::string text;
  for (const Problem& failure : lemmas.failures)
    text += fmt::format("refused: {}\n", failure.text());
  const bool except = found.right() && !lemmas.not_checked.empty();
  if (except) text = found.verdict() + '\n';
  text += (except ? "  all else is " : text.empty() ? "" : "  but for this ") + found.proof.text();
  if (text.back() != '\n') text += '\n';
  if (lemmas.checked > 0)
    text += fmt::format("  {} of its assumptions about ops, at small sizes, in {:.2f} s\n",
                        plural(lemmas.checked, "check"), lemmas.seconds);
  if (step_plans == nullptr) return text;
  const auto count = static_cast<std::int64_t>(step_plans->plans.size());
  return text + fmt::format("  of its steps' {}, {}\n", plural(count, "plan"),
                            found.right() ? "each by itself; this is the one of most instructions"
                                          : "this is the first that is refused");
}

}  // namespace

Json run_prove(const RunRequest& asked, const RunSetup& setup, bool strict) {
  const Found found = found_of(setup, strict);
  const Proof& proof = found.proof;
  Json result = {{"kind", "prove"}, {"status", "done"}};
  result["verdict"] = found.verdict();
  result["plan"] = found.plan->mix();
  result["plan_hash"] = found.plan->hash();
  result.update(identity_of(asked, setup.seed));
  result["ranks"] = found.plan->ranks();
  result["stages"] = proof.stages;
  result["parameters"] = proof.parameters;
  result["microbatches"] = proof.microbatches;
  result["instructions"] = proof.instructions;
  result["runs"] = proof.runs;
  result["rules"] = proof.rules;
  result["seconds"] = proof.seconds;
  result["strict"] = strict;
  result["lemmas"] = proof.lemmas.size();
  result["lemmas_tried"] = found.lemmas.checked;
  result["lemma_seconds"] = found.lemmas.seconds;
  result["lemma_kinds"] = Json::array();
  for (const Lemma& lemma : proof.lemmas)
    result["lemma_kinds"].push_back(json_of(lemma, *found.plan->graph));
  result["notes"] = proof.notes;
  result["not_tried"] = found.lemmas.not_checked;
  result["refusals"] = Json::array();
  for (const Refusal& refusal : proof.refusals) result["refusals"].push_back(json_of(refusal));
  for (const Problem& failure : found.lemmas.failures)
    result["refusals"].push_back(json_of(refusal_of(failure)));
  if (setup.step_plans) result["plans"] = setup.step_plans->plans.size();
  result["text"] = text_of(found, setup.step_plans.get());
  return result;
}

}  // namespace mw
