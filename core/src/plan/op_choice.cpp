// Picks ops of a model's layers by names, parts of names, or a script's function.
#include "plan/op_choice.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "meshwright/engine/json_text.h"
#include "meshwright/engine/text.h"

namespace mw {

bool in_layers(const Op& op, const Graph& graph) {
  return op.layer >= 0 && op.layer < graph.layers;
}

OpPredicate op_function(const std::string& key, const Json& given,
                        std::shared_ptr<const ScriptReach> reach) {
  Values values(Json{{key, given}});
  values.set_reach(std::move(reach));
  return [key, call = values.function(key)](const Op& op) {
    const Json answer = call({Json{{"name", op.name},
                                   {"kind", op.kind()},
                                   {"class", name_of(op.op_class())},
                                   {"layer", op.layer}}});
    if (!answer.is_boolean() && !answer.is_null()) {
      throw Error(
          Stage::options, "function.result", key,
          fmt::format("{}: the function returned {} for {}", key, json_text(answer), op.name),
          "return true or false");
    }
    return answer.is_boolean() && answer.get<bool>();
  };
}

std::vector<std::string> op_names(const std::string& key, const Json& given,
                                  const std::string& hint, Problems& problems) {
  std::vector<std::string> names;
  for (const Json& name : given) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  if (names.empty() || names.size() != given.size()) {
    problems.add(Stage::options, "option.value", key, key + " must be a list of names", hint);
  }
  return names;
}

std::vector<bool> choose_ops(const Graph& graph, const OpPredicate& takes) {
  std::vector<bool> chosen;
  for (const Op& op : graph.ops()) chosen.push_back(in_layers(op, graph) && takes(op));
  return chosen;
}

std::vector<bool> choose_ops(const Graph& graph, const std::string& key,
                             const std::vector<std::string>& names, Problems& problems) {
  std::set<std::string> used, kinds;
  std::vector<bool> chosen = choose_ops(graph, [&](const Op& op) {
    kinds.insert(op.kind());
    bool any = false;
    for (const std::string& name : names) {
      const std::string part = "." + name + ".";
      if (op.kind() != name && ("." + op.name + ".").find(part) == std::string::npos) continue;
      used.insert(name);
      any = true;
    }
    return any;
  });
  for (const std::string& name : names) {
    if (used.count(name) > 0) continue;
    problems.add(Stage::options, "option.choice", key,
                 fmt::format("{}: no op of a layer is called {}", key, quote(name)),
                 fmt::format("kinds are {}", join({kinds.begin(), kinds.end()})));
  }
  return chosen;
}

}  // namespace mw
