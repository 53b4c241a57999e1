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

const Options& experiment_options();
// The keys of an experiment in which its runs may differ (Option::of_run).
std::vector<std::string> keys_of_run();
const Options& evaluate_options();  // keys of `evaluate`
const Options& export_options();    // keys of `export`

class PlanMemo;

struct ReadContext {
  Catalog* catalog = nullptr;
  std::vector<std::filesystem::path> roots;  // where relative paths are looked for
  // Calls a script's function; see lua/host.h.
  std::function<Json(std::int64_t, const std::vector<Json>&)> call;
  PlanMemo* memo = nullptr;  // models and plans of other experiments, or null
  // Make plans for the cluster that an experiment names, as nothing is run here.
  bool for_cluster = false;
  // Leave out the checks of plans (engine/plan.h), for plans that are predicted among many or that
  // the caller judges.
  bool unchecked = false;
};

// Throws Error with every problem found.
Experiment read_experiment(const Json& table, const ReadContext& context);

// Reads `check`: true, false, or a check of replicas alone.
void read_check(const Json& given, RunChecks& checks, Problems& problems);

const Options& checkpoint_options();
const Options& resume_options();

// Reads `trace`, sorted; the third and the last of `steps` if it is null. The first two steps warm
// up; where there are fewer, the last alone.
std::vector<std::int64_t> read_trace(const Json& given, std::int64_t steps, Problems& problems);

// Reads `checkpoint` and `resume`, null where they are not given. The path stays as it is written.
Checkpointing read_checkpointing(const Json& checkpoint, const Json& resume, Problems& problems);

}  // namespace mw
