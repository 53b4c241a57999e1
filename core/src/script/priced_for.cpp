// Reads what an experiment's plan is priced for, and holds the plan against it.
#include "script/priced_for.h"

#include "base/json_text.h"
#include "predict/cluster_machine.h"

namespace mw {

bool decides_run(const std::string& key) {
  return key != "cluster" && key != "stack";
}

void read_priced_for(const Values& values, Experiment& experiment, Problems& problems) {
  const auto given = [&](const char* key) {
    return values.has(key) ? without_hidden(values.at(key)) : Json();
  };
  const Json cluster = experiment.cluster = given("cluster");
  const Json stack = experiment.stack = given("stack");
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
