// A strategy that a script makes of a table: mw.strategy { name, axis, rules, store, … }.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "meshwright/options.h"
#include "meshwright/strategy.h"

namespace mw {

const Options& strategy_options();
const Options& strategy_axis_options();
const Options& strategy_rule_options();
const Options& strategy_store_options();

// The table of mw.strategy, read. It makes a plan's entries as a plugin does: with the ways of its
// axis.
class StrategyTable {
 public:
  // Problems have keys in `path`, or in the strategy's name where that is empty:
  // "my_tp.rules[1].dim".
  StrategyTable(const Json& table, std::string path, Problems& problems);

  const std::string& name() const { return name_; }
  // What an entry takes: `ways`, or of a strategy with several axes the ways of each by its name.
  const Options& options() const { return options_; }
  // Makes the strategy of an entry. `values`: read by options(). The strategy calls the script's
  // functions on the thread that makes the plan.
  std::shared_ptr<const Strategy> make(const Values& values,
                                       const std::shared_ptr<const ScriptReach>& reach) const;

 private:
  void read_axes(const Json& given, const std::string& path, Problems& problems);
  void read_passes(const Json& given, const std::string& path, Problems& problems);

  std::string name_;
  Values values_;
  // The axes with their ways where a plan does not say; 0: none.
  std::vector<AxisRequest> axes_;
  std::vector<std::shared_ptr<const class PassTable>> passes_;
  Options options_;
};

}  // namespace mw
