#include "plan/recompute_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/json_text.h"
#include "base/text.h"

namespace mw {
namespace {

using Kind = RecomputePolicy::Kind;

constexpr const char* what_there_is =
    "\"none\", \"selective\", \"full\", { every = n }, { ops = { \"attention\" } }, { fit = "
    "\"8GiB\" }, or "
    "function(op) return true end";

const Options& table_options() {
  static const Options options =
      Options()
          .integer("every", "layers between what is kept")
          .at_least(1)
          .optional()
          .list("ops",
                "kinds of ops, or parts of their names: \"attention\", \"mlp\", \"rms_norm\"")
          .optional()
          .bytes("fit", "what a rank may hold: the cheapest set with which it does")
          .at_least(1)
          .optional()
          .choice("collectives", {"repeat", "keep"},
                  "what collectives brought is fetched again, or kept")
          .fallback("repeat");
  return options;
}

// Whether `name` is the op's kind, or a part of its name between dots.
bool called(const Op& op, const std::string& name) {
  return op.kind() == name || ("." + op.name + ".").find("." + name + ".") != std::string::npos;
}

void read_table(const Json& given, RecomputePolicy& policy, Problems& problems) {
  Problems found;
  const Values values = table_options().read(given, "recompute", found);
  for (const Problem& p : found.list()) problems.add(p.stage, p.message, p.hint);
  if (!found.empty()) return;
  const int said = static_cast<int>(values.has("every")) + static_cast<int>(values.has("ops")) +
                   static_cast<int>(values.has("fit"));
  if (said > 1) {
    problems.add(Stage::options, "recompute: every, ops and fit are three ways to choose; take one",
                 what_there_is);
    return;
  }
  if (said == 0) {
    problems.add(Stage::options, "recompute: a table says what: every, ops or fit", what_there_is);
    return;
  }
  policy.keep_collectives = values.text("collectives") == "keep";
  policy.kind = Kind::full;
  if (values.has("every")) policy.every = static_cast<int>(values.integer("every"));
  if (values.has("fit")) {
    policy.kind = Kind::fit;
    policy.fit = values.integer("fit");
  }
  if (values.has("ops")) {
    policy.kind = Kind::ops;
    for (const Json& name : values.at("ops")) {
      if (name.is_string()) policy.ops.push_back(name.get<std::string>());
    }
    if (policy.ops.empty() || policy.ops.size() != values.at("ops").size()) {
      problems.add(Stage::options, "recompute.ops must be a list of names", what_there_is);
    }
  }
}

}  // namespace

bool in_layers(const Op& op, const Graph& graph) {
  return op.layer >= 0 && op.layer < graph.layers;
}

Json RecomputePolicy::describe() const {
  Json json;
  switch (kind) {
    case Kind::none:
      return "none";
    case Kind::selective:
      json = "selective";
      break;
    case Kind::full:
      json = Json{{"every", every}};
      break;
    case Kind::ops:
      json = Json{{"ops", ops}};
      break;
    case Kind::fit:
      json = Json{{"fit", fit}};
      break;
    case Kind::function:
      json = "function";
      break;
    case Kind::fixed:
      json = fit > 0 ? Json{{"fit", fit}} : Json("chosen");
      break;
  }
  return keep_collectives ? Json{{"what", json}, {"collectives", "keep"}} : json;
}

RecomputePolicy read_recompute(const Json& given, std::shared_ptr<const ScriptReach> reach,
                               Problems& problems) {
  RecomputePolicy policy;
  if (is_function(given)) {
    policy.kind = Kind::function;
    Values values(Json{{"recompute", given}});
    values.set_reach(std::move(reach));
    policy.what = [call = values.function("recompute")](const Op& op) {
      const Json answer = call({Json{{"name", op.name}, {"kind", op.kind()}, {"layer", op.layer}}});
      if (!answer.is_boolean() && !answer.is_null()) {
        throw Error(
            Stage::options,
            fmt::format("recompute: the function returned {} for {}", answer.dump(), op.name),
            "return true or false");
      }
      return answer.is_boolean() && answer.get<bool>();
    };
    return policy;
  }
  if (given.is_object()) {
    read_table(given, policy, problems);
    return policy;
  }
  const std::string text = given.is_string() ? given.get<std::string>() : given.dump();
  if (text == "selective") policy.kind = Kind::selective;
  if (text == "full") policy.kind = Kind::full;
  if (text != "none" && policy.kind == Kind::none) {
    problems.add(Stage::options, fmt::format("recompute: there is no {}", quote(text)),
                 what_there_is);
  }
  return policy;
}

RecomputeSet resolve(const RecomputePolicy& policy, const Graph& graph, Problems& problems) {
  if (policy.kind == Kind::fixed) return policy.set;
  RecomputeSet set;
  set.every = policy.every;
  set.keep_moves = policy.keep_collectives;
  std::set<std::string> used;
  for (const Op& op : graph.ops()) {
    bool again = false;
    if (in_layers(op, graph)) {
      switch (policy.kind) {
        case Kind::selective:  // scores, softmax and their product with the values
          again = op.kind() == "attention";
          break;
        case Kind::full:
          again = true;
          break;
        case Kind::ops:
          for (const std::string& name : policy.ops) {
            if (!called(op, name)) continue;
            again = true;
            used.insert(name);
          }
          break;
        case Kind::function:
          again = policy.what(op);
          break;
        case Kind::none:
        case Kind::fit:
        case Kind::fixed:
          break;
      }
    }
    set.ops.push_back(again);
  }
  std::set<std::string> names;
  for (const Op& op : graph.ops()) {
    if (in_layers(op, graph)) names.insert(op.kind());
  }
  for (const std::string& name : policy.ops) {
    if (used.count(name) > 0) continue;
    problems.add(Stage::options,
                 fmt::format("recompute.ops: no op of a layer is called {}", quote(name)),
                 fmt::format("kinds are {}", join({names.begin(), names.end()})));
  }
  return set;
}

}  // namespace mw
