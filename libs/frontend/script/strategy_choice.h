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
// looks also in plugins that nobody has named, in files of another name than the strategy's.
std::optional<StrategyChoice> make_choice(const Json& entry, const std::string& path,
                                          Catalog& catalog,
                                          const std::shared_ptr<const ScriptReach>& reach,
                                          Problems& problems, bool anywhere = false);

// Refuses a plan in which different tables of mw.strategy have one name, by which rules are told
// apart.
void refuse_namesakes(const Json& plan, Problems& problems);

}  // namespace mw
