// The request for a run: what its user wrote, and what tells it apart from other runs. RunSetup
// (meshwright/engine/run.h) has what its ranks are given.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/json.h"

namespace mw {

// Makes strategies that the plan does not have, for the search for another plan.
struct StrategySource {
  // Makes the strategy of an entry such as { plugin = "tp", ways = 4 }; null where there are no
  // plugins. Throws Error for options that the plugin does not take.
  std::function<StrategyChoice(const Json& entry)> make;
  // names that `plugin` may have in an entry; may be null
  std::function<std::vector<std::string>()> names;
};

struct RunRequest {
  Json table;          // experiment as the user wrote it
  Json resolved;       // experiment with the defaults of all keys
  Json data_settings;  // settings of the run's data, defaults included
  std::string name;    // name that the script gives, or else the plan's mix
  std::string hash, hash_without_seed;
  std::vector<std::string> notes;  // remarks for the user on the script and its files
  // What a plan is priced for: tables of mw.cluster and mw.stack; null: this machine.
  Json cluster, stack;
  double tokens = 0;   // tokens of the whole training; 0: not given
  double price = 0;    // price of a device hour; 0: not given
  bool force = false;  // start although this machine's memory does not suffice
  // The microbatch policy looks at each step's number, so that the microbatches of steps may
  // differ: in this run, or only in later steps of a longer run.
  bool shapes_steps = false;
  StrategySource strategies;
};

}  // namespace mw
