// A run as it was asked for: what is needed to ask for a changed one, or to say in what two differ.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meshwright/engine/run.h"
#include "meshwright/json.h"

namespace mw {

struct RunRequest : RunSetup {
  Json table;          // what the user wrote
  Json data_settings;  // what `data` was made of, with its defaults
  // What a plan is priced for, as mw.cluster and mw.stack made them; null: this machine.
  Json cluster, stack;
  bool force = false;  // started although this machine's memory does not suffice
  // Makes a strategy of an entry such as { plugin = "tp", ways = 4 }; null where there are no
  // plugins. Throws Error for what the plugin does not take.
  std::function<StrategyChoice(const Json& entry)> make_strategy;
  std::function<std::vector<std::string>()> strategy_names;  // that may stand as `plugin`; or null
};

}  // namespace mw
