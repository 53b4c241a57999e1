// mw.prove: the programs of a plan, or of each of its steps' plans, compute what one rank would; or
// the instruction at which that fails.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "app/verbs.h"
#include "base/text.h"
#include "check/proved.h"
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

// Of an experiment whose steps differ: the first proof that refuses, else that of most instructions.
std::pair<Proof, const Plan*> proof_of(const Experiment& experiment, bool strict) {
  if (!experiment.step_plans)
    return {prove_plan(*experiment.plan, {strict}), experiment.plan.get()};
  std::pair<Proof, const Plan*> most;
  for (const auto& plan : experiment.step_plans->plans) {
    Proof proof = prove_plan(*plan, {strict});
    const bool proved = proof.proved();
    if (!proved || most.second == nullptr || proof.rules > most.first.rules)
      most = {std::move(proof), plan.get()};
    if (!proved) break;
  }
  return most;
}

}  // namespace

Json run_prove(const Experiment& experiment, bool strict) {
  const auto [proof, plan] = proof_of(experiment, strict);
  Json result = {{"kind", "prove"}, {"status", "done"}};
  result["verdict"] = proof.proved() ? "proved" : "refused";
  result["plan"] = plan->mix();
  result["plan_hash"] = plan->hash();
  result.update(identity_of(experiment));
  result["ranks"] = plan->ranks();
  result["stages"] = proof.stages;
  result["parameters"] = proof.parameters;
  result["microbatches"] = proof.microbatches;
  result["instructions"] = proof.instructions;
  result["runs"] = proof.runs;
  result["rules"] = proof.rules;
  result["seconds"] = proof.seconds;
  result["strict"] = strict;
  result["lemmas"] = proof.lemmas.size();
  result["lemma_kinds"] = Json::array();
  for (const Lemma& lemma : proof.lemmas)
    result["lemma_kinds"].push_back(json_of(lemma, *plan->graph));
  result["notes"] = proof.notes;
  result["refusals"] = Json::array();
  for (const Refusal& refusal : proof.refusals) result["refusals"].push_back(json_of(refusal));
  std::string text = proof.text();
  if (text.empty() || text.back() != '\n') text += '\n';
  if (experiment.step_plans) {
    const auto count = static_cast<std::int64_t>(experiment.step_plans->plans.size());
    result["plans"] = count;
    text += fmt::format("  of its steps' {}, {}\n", plural(count, "plan"),
                        proof.proved() ? "each by itself; this is the one of most instructions"
                                       : "this is the first that is refused");
  }
  result["text"] = text;
  return result;
}

}  // namespace mw
