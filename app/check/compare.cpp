// Runs a comparison of two experiments for a script or the command line, and puts what it found
// into JSON and text.
#include "app/verbs.h"

#include <algorithm>

#include "app/stuck_end.h"
#include "check/compare.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/processes.h"
#include "predict/device.h"
#include "predict/memory_limit.h"

namespace mw {
namespace {

constexpr std::int64_t most_steps = 2;  // two, as an update's effect shows in the next step

Json json_of(const std::optional<TensorDifference>& d, const Graph& graph) {
  if (!d) return {};
  static const char* const names[] = {"output", "gradient", "parameter gradient", "parameter"};
  Json json = {{"op", d->op},
               {"what", d->key.read() ? "operand" : names[static_cast<int>(d->key.kind)]},
               {"step", d->key.step},
               {"error", d->error},
               {"bound", d->bound},
               {"text", describe(*d, graph)}};
  if (d->key.read()) json["value"] = d->value;
  if (d->key.kind >= TensorKind::gradient) json["parameter"] = d->value;
  return json;
}

Json name_of(Suspect suspect) {
  static const char* const names[] = {nullptr, "a", "b", "both"};
  const char* const name = names[static_cast<int>(suspect)];
  return name == nullptr ? Json() : Json(name);
}

// The parameter that differs first: in its update, if all before agrees, else in its gradient.
Json parameter_of(const CompareOutcome& o) {
  if (o.first && o.first->key.kind == TensorKind::parameter) return o.first->value;
  return o.first_gradient ? Json(o.first_gradient->value) : Json();
}

}  // namespace

Json run_compare(const ComparedRun& one, const ComparedRun& other, Output& output) {
  const RunSetup &a = one.setup, &b = other.setup;
  const std::int64_t steps = std::min({most_steps, a.steps, b.steps});
  Problems problems;
  check_comparable(one, other, steps, problems);
  problems.throw_if_any();
  std::string forced;
  for (const ComparedRun* each : {&one, &other}) {
    const std::string note = check_machine_memory(each->asked, each->setup, this_device().memory);
    if (!note.empty()) forced += note + "\n";
  }
  const CompareOutcome o = [&] {
    const IfStuck if_stuck([&](const Error& error) { end_stuck(stuck_in_run(error), output); });
    return compare(a, b, steps, stop_flag());
  }();
  if (a.processes != nullptr && !a.processes->first()) return Json::object();
  Json result = {{"kind", "compare"}, {"status", o.interrupted ? "interrupted" : "done"}};
  result["verdict"] = nullptr;
  result["a"] = a.plan->mix();
  result["b"] = b.plan->mix();
  result["plan_hashes"] = {a.plan->hash(), b.plan->hash()};
  result["text"] = forced + describe(o, *a.plan, *b.plan);
  if (o.interrupted) return result;
  const Graph& graph = *a.plan->graph;
  result["verdict"] = o.equal ? "equal" : "different";
  result["same_bits"] = o.same_bits;
  result["precision"] = {o.precision_a, o.precision_b};
  result["steps"] = o.steps;
  result["max_relative_error"] = {
      {"loss", o.loss}, {"gradients", o.gradients}, {"parameters", o.parameters}};
  result["bound_ratio"] = o.bound_ratio;
  result["nearest"] = json_of(o.closest, graph);
  result["worst"] = o.worst ? Json(o.worst->value) : Json();
  result["first_difference"] = json_of(o.first_bits, graph);
  result["first_divergence"] = o.first ? Json(o.first->op) : Json();
  result["first_beyond"] = json_of(o.first, graph);
  result["divergence"] =
      o.first ? Json(describe(*o.first, graph) + "; " + advice(o, *o.first)) : Json();
  result["parameter"] = parameter_of(o);
  result["suspect"] = name_of(o.suspect);
  const std::string note = note_of(o);
  result["note"] = note.empty() ? Json() : Json(note);
  result["reported"] = {
      {"loss", {{"error", o.reported_loss.error}, {"bound", o.reported_loss.bound}}},
      {"norm", {{"error", o.reported_norm.error}, {"bound", o.reported_norm.bound}}}};
  result["moved_choices"] = o.moved_choices;
  result["both_off"] = o.both_off;
  return result;
}

}  // namespace mw
