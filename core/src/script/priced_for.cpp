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
  experiment.cluster = given("cluster");
  experiment.stack = given("stack");
  if (experiment.cluster.is_null()) {
    if (experiment.stack.is_null()) return;
    problems.add(Stage::options, "option.conflict", "stack",
                 "stack is given, and no cluster: this machine runs this project's own",
                 "cluster = mw.cluster(\"selene\"), or leave stack out");
    return;
  }
  const auto machine = read_machine(experiment.cluster, experiment.stack, problems);
  if (machine && experiment.plan) check_placed(*experiment.plan, *machine, problems);
}

}  // namespace mw
