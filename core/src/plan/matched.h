// Refuses rules that match no op, and axes along which all ranks would do the same work.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/error.h"
#include "meshwright/strategy.h"
#include "plan/derive.h"

namespace mw {

// Records what rules match while placements are derived from them.
class Matched {
 public:
  explicit Matched(const std::vector<Rule>& rules) : rules_(rules), ops_(rules.size()) {}

  void add(const Rule& rule, int op) { ops_[&rule - rules_.data()].push_back(op); }
  void add(const RotationRule& rule) { rotations_.insert(&rule); }
  void add(const StorageRule& rule) { storage_.insert(&rule); }

  // Adds a problem for each rule that matched nothing, and for each that says what another one says
  // of the very same ops. A rule for every op with a dim that the model declares, but has no op of
  // (ffn, where all layers have experts), is neither.
  void refuse(const Graph& graph, const std::vector<RotationRule>& rotations,
              const std::vector<StorageRule>& storage, Problems& problems) const;

 private:
  // The other strategies' rules that took ops with this rule's dim on its axis, as text: "hidden ->
  // tp of mine (plan[2]) takes 12 ops".
  std::string takers_from(const Graph& graph, std::size_t rule) const;

  const std::vector<Rule>& rules_;
  std::vector<std::vector<int>> ops_;  // by rule: the ops that it took
  std::set<const RotationRule*> rotations_;
  std::set<const StorageRule*> storage_;
};

// Adds a problem for each rule that would cut, store or rotate a dim over ranks that are stages of
// the pipeline: these run different layers, so that no tensor lies on all of them.
void refuse_on_stages(const Draft& draft, Problems& problems);

// Adds a problem for each axis of several ranks on which nothing lives, so that all of them would
// do the same work: no op is computed, no parameter stored in parts there, no pass works on it, and
// it has no stages. `asked`: who asked for each axis.
void refuse_idle_axes(const Draft& draft, const Derived& derived,
                      const std::map<std::string, PluginPlace>& asked, Problems& problems);

}  // namespace mw
