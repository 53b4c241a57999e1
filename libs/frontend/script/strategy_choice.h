// A strategy of a script's plan, made by its plugin or of a table of mw.strategy.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "meshwright/engine/plan.h"
#include "meshwright/options.h"
#include "meshwright/registration.h"

namespace mw {

// The strategy of an entry such as { plugin = "tp", ways = 2 } at `path` ("plan[2]"), or of one
// that has the table of mw.strategy (strategy_key). Nothing, and problems, if the plugin does not
// take the options. Throws Error where it cannot be made, whatever the plugin throws. `anywhere`:
// also by a strategy that is in a file of another name, though nobody named its plugin.
std::optional<StrategyChoice> make_choice(const Json& entry, const std::string& path,
                                          Catalog& catalog,
                                          const std::shared_ptr<const ScriptReach>& reach,
                                          Problems& problems, bool anywhere = false);

// Refuses entries of a plan that different tables of mw.strategy call by one name: rules tell each
// other by it.
void refuse_namesakes(const Json& plan, Problems& problems);

}  // namespace mw
