// What was asked of a run: what its user wrote, and what tells it apart from other runs. What its
// ranks are given is RunSetup's (meshwright/engine/run.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/json.h"

namespace mw {

// Makes strategies beside those of a plan, for the search for another plan.
struct StrategySource {
  // The strategy of an entry such as { plugin = "tp", ways = 4 }; null where there are no plugins.
  // Throws Error for what the plugin does not take.
  std::function<StrategyChoice(const Json& entry)> make;
  std::function<std::vector<std::string>()> names;  // that may stand as `plugin`; or null
};

struct RunRequest {
  Json table;          // what the user wrote
  Json resolved;       // every key, with its default
  Json data_settings;  // what `data` was made of, with its defaults
  std::string name;    // the script's, or the plan's mix
  std::string hash, hash_without_seed;
  std::vector<std::string> notes;  // what people should know of what the run reads
  // What a plan is priced for, as mw.cluster and mw.stack made them; null: this machine.
  Json cluster, stack;
  double tokens = 0;   // that the whole training is to see; 0: nobody says
  double price = 0;    // of a device hour; 0: nobody says
  bool force = false;  // started although this machine's memory does not suffice
  // The microbatch policy looks at each step's number, so that steps may differ: those of this run,
  // or only later ones of a longer run.
  bool shapes_steps = false;
  StrategySource strategies;
};

}  // namespace mw
