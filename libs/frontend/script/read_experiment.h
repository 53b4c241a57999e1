// Reads a script's table into an experiment. Nothing is written and no rank is started before all
// of it is known to be right.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "meshwright/options.h"
#include "meshwright/registration.h"
#include "script/experiment.h"

namespace mw {

// The keys of an experiment table.
const Options& experiment_options();
// The keys of an experiment in which its runs may differ (Option::of_run).
std::vector<std::string> keys_of_run();
const Options& evaluate_options();  // of its `evaluate`
const Options& export_options();    // of its `export`

class PlanMemo;

struct ReadContext {
  Catalog* catalog = nullptr;
  std::vector<std::filesystem::path> roots;  // where relative paths are looked for
  // Calls a script's function; see lua/host.h.
  std::function<Json(std::int64_t, const std::vector<Json>&)> call;
  PlanMemo* memo = nullptr;  // of what other experiments were made of, or null
  // Plans are made for the cluster that an experiment names: nothing is run here.
  bool for_cluster = false;
  // Plans are not looked at by checks of plans (engine/plan.h): they are predicted among many,
  // or judged by what asks for them.
  bool unchecked = false;
};

// Throws Error with every problem found.
Experiment read_experiment(const Json& table, const ReadContext& context);

// `check`: true, false, or a check of replicas alone.
void read_check(const Json& given, RunChecks& checks, Problems& problems);

const Options& checkpoint_options();
const Options& resume_options();

// Sorted; the third and the last of `steps` if the experiment has no such key. The first two steps
// warm up; where there are fewer, the last alone.
std::vector<std::int64_t> read_trace(const Json& given, std::int64_t steps, Problems& problems);

// `checkpoint` and `resume`, null where they are not given. The path as it is written.
Checkpointing read_checkpointing(const Json& checkpoint, const Json& resume, Problems& problems);

}  // namespace mw
