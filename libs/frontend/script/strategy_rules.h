// The rules in a table of mw.strategy, and the strategy that brings them into a plan.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "meshwright/options.h"
#include "meshwright/strategy.h"

namespace mw {

// Each entry's values; problems with keys such as "PATH[1].dim".
std::vector<Values> read_rules(const Json& given, const std::string& path, Problems& problems);
std::vector<Values> read_store(const Json& given, const std::string& path, Problems& problems);

// `table`: the checked values of strategy_options(), with the reach of its functions.
std::shared_ptr<const Strategy> make_script_strategy(std::string name,
                                                     std::vector<AxisRequest> axes,
                                                     const Values& table);

}  // namespace mw
