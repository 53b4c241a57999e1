// Reads what an experiment's plan is priced for, and holds the plan against it.
#include "script/priced_for.h"

#include "meshwright/engine/json_text.h"
#include "predict/cluster_machine.h"

namespace mw {

namespace {

Json given(const Values& values, const char* key) {
  return values.has(key) ? without_hidden(values.at(key)) : Json();
}

}  // namespace

void make_for_cluster(const Values& values, PlanRequest& request) {
  const Json cluster = given(values, "cluster");
  if (cluster.is_null()) return;
  Problems problems;
  const std::shared_ptr<const Machine> machine =
      read_machine(cluster, given(values, "stack"), problems);
  if (!machine || machine->memory_together() || machine->scratch() == nullptr) return;
  request.scratch = {machine, machine->scratch()};
  request.kept_by_libraries = machine->kept_by_libraries();
}

void read_priced_for(const Values& values, Experiment& experiment, Problems& problems) {
  const Json cluster = experiment.cluster = given(values, "cluster");
  const Json stack = experiment.stack = given(values, "stack");
  if (cluster.is_null()) {
    if (stack.is_null()) return;
    problems.add(Stage::options, "option.conflict", "stack",
                 "stack is given, and no cluster: this machine runs this project's own",
                 "cluster = mw.cluster(\"selene\"), or leave stack out");
    return;
  }
  const auto machine = read_machine(cluster, stack, problems);
  if (machine && experiment.plan) check_placed(*experiment.plan, *machine, problems);
}

std::unique_ptr<Machine> machine_of(const Experiment& experiment) {
  if (experiment.cluster.is_null()) return nullptr;
  Problems problems;
  auto machine = read_machine(experiment.cluster, experiment.stack, problems);
  problems.throw_if_any();
  return machine;
}

}  // namespace mw
