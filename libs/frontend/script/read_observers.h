// Reads the keys `observe` and `observers`, and makes the observers of a run of what they list.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/engine/plugin_call.h"
#include "script/read_experiment.h"

namespace mw {

// What the keys list, read and not made yet: a function of the script, or a plugin's observer.
struct ListedObserver {
  std::string place;  // "observe", "observers[2]"
  Json function;      // null: a plugin's observer
  std::optional<Chosen> chosen;
};

// Lists `observe` first, then `observers` in their order.
std::vector<ListedObserver> read_observers(const Values& values,
                                           const std::shared_ptr<const ScriptReach>& reach,
                                           Problems& problems);

// Adds the observers of a run to `made`; `timeout`: seconds that a plugin's may take each time that
// a rank calls it. Returns what the run's hash covers: the observers that can end the run.
// Functions are called after each step, on the first rank's thread, with the step's index and {
// loss =, grad_norm =, lr =, tokens =, seconds = }.
Json make_observers(const std::vector<ListedObserver>& listed, const ReadContext& context,
                    const ObservedRun& run, double timeout,
                    std::vector<std::shared_ptr<RunObserver>>& made, Problems& problems);

}  // namespace mw
