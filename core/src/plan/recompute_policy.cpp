// Reads a script's `recompute` key: what backward makes again instead of keeping it.
#include "plan/recompute_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "meshwright/engine/chosen.h"
#include "meshwright/engine/json_text.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

class Nothing final : public Recompute {
 public:
  bool takes(const Op&) const override { return false; }
};

// Scores, softmax and their product with the values.
class Selective final : public Recompute {
 public:
  bool takes(const Op& op) const override { return op.op_class() == OpClass::attention; }
};

class Full final : public Recompute {
 public:
  bool takes(const Op&) const override { return true; }
};

std::vector<bool> chosen_by(const Recompute& policy, const Graph& graph) {
  return choose_ops(graph, [&](const Op& op) { return policy.takes(op); });
}

constexpr const char* recompute_forms =
    "\"none\", \"selective\", \"full\", { every = n }, { ops = { \"attention\" } }, { fit = "
    "\"8GiB\" }, or "
    "function(op) return true end";

const Options& recompute_options() {
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
          .any("what",
               "\"none\", \"selective\", \"full\" or a function(op): the same as these alone")
          .optional()
          .boolean("gathers", "what all-gathers brought is brought again, whoever reads it")
          .fallback(false)
          .choice("collectives", {"repeat", "keep"},
                  "what collectives brought is fetched again, or kept")
          .fallback("repeat");
  return options;
}

void read_table(const Json& given, const std::shared_ptr<const ScriptReach>& reach,
                RecomputePolicy& policy, Problems& problems) {
  Problems found;
  const Values values = recompute_options().read(given, "recompute", found);
  problems.add(found);
  if (!found.empty()) return;
  const auto said = std::ranges::count_if(std::array{"what", "every", "ops", "fit"},
                                          [&](const char* key) { return values.has(key); });
  if (said > 1) {
    problems.add(Stage::options, "option.conflict", "recompute",
                 "recompute: what, every, ops and fit are four ways to choose; take one",
                 recompute_forms);
    return;
  }
  policy.gathers = values.flag("gathers");
  if (said == 0 && !policy.gathers) {
    problems.add(Stage::options, "option.missing", "recompute",
                 "recompute: a table says what: what, every, ops, fit or gathers", recompute_forms);
    return;
  }
  if (policy.gathers && values.text("collectives") == "keep") {
    problems.add(Stage::options, "option.conflict", "recompute.gathers",
                 "recompute: gathers = true brings again what collectives = \"keep\" keeps",
                 "take one of them");
  }
  policy.keep_collectives = values.text("collectives") == "keep";
  static const std::map<std::string, RecomputePolicy::Kind> words = {
      {"none", RecomputePolicy::Kind::none},
      {"selective", RecomputePolicy::Kind::selective},
      {"full", RecomputePolicy::Kind::full},
  };
  const Json what = values.has("what") ? values.at("what") : Json(said == 0 ? "none" : "full");
  if (is_function(what)) {
    policy.kind = RecomputePolicy::Kind::function;
    policy.what = op_function("recompute.what", what, reach);
  } else if (const auto kind = words.find(what.is_string() ? what.get<std::string>() : "");
             kind != words.end()) {
    policy.kind = kind->second;
  } else {
    const bool is_word = what.is_string();
    std::vector<std::string> known;
    for (const auto& [word, kind_of_word] : words) known.push_back(word);
    const std::string near = is_word ? did_you_mean(what.get<std::string>(), known) : "";
    problems.add(Stage::options, is_word ? "option.choice" : "option.value", "recompute.what",
                 is_word ? fmt::format("recompute: there is no {}", describe(what))
                         : fmt::format("recompute.what: got {}", describe(what)),
                 near.empty() ? "what is \"none\", \"selective\", \"full\" or function(op) return "
                                "true end"
                              : near);
  }
  if (values.has("every")) policy.every = values.int32("every");
  if (values.has("fit")) {
    policy.kind = RecomputePolicy::Kind::fit;
    policy.fit = values.integer("fit");
  }
  if (values.has("ops")) {
    policy.kind = RecomputePolicy::Kind::ops;
    policy.ops = op_names("recompute.ops", values.at("ops"), recompute_forms, problems);
  }
}

// What a plugin brought.
void read_registered(const Json& given, const std::shared_ptr<const ScriptReach>& reach,
                     RecomputePolicy& policy, Problems& problems) {
  const auto chosen = choose(Kind::recompute, given, "recompute", reach, recompute_forms, problems);
  if (!chosen) return;
  const auto made = make_chosen<Recompute>(*chosen, problems);
  if (made == nullptr) return;
  policy.kind = RecomputePolicy::Kind::registered;
  policy.settings = without_hidden(chosen->values.json());
  policy.settings["kind"] = chosen->registration->name;
  policy.what = [made, speaker = chosen->speaker](const Op& op) {
    return call_plugin(speaker, "chose ops", [&] { return made->takes(op); });
  };
}

bool registered(Catalog& catalog, const std::string& name) {
  try {
    catalog.find(Kind::recompute, name);
    return true;
  } catch (const Error& error) {
    const std::string& code = error.problems().front().code;
    // Another kind's name ("attention" is an op), or nobody's; else a broken plugin.
    if (code != "option.choice" && code != "option.value") throw;
    return false;
  }
}

}  // namespace

std::vector<Registration> built_in_recompute() {
  return {recompute<Nothing>("none", "All activations are kept."),
          recompute<Selective>("selective", "Attention is made again (Korthikanti et al. 2022)."),
          recompute<Full>("full", "Each layer is made again from its input (Chen et al. 2016).")};
}

Json RecomputePolicy::describe() const {
  Json json;
  switch (kind) {
    case RecomputePolicy::Kind::none:
      json = "none";
      break;
    case RecomputePolicy::Kind::selective:
      json = "selective";
      break;
    case RecomputePolicy::Kind::full:
      json = Json{{"every", every}};
      break;
    case RecomputePolicy::Kind::ops:
      json = Json{{"ops", ops}};
      break;
    case RecomputePolicy::Kind::fit:
      json = Json{{"fit", fit}};
      break;
    case RecomputePolicy::Kind::function:
      json = "function";
      break;
    case RecomputePolicy::Kind::registered:
      json = settings;
      break;
    case RecomputePolicy::Kind::fixed:
      json = fit > 0 ? Json{{"fit", fit}} : Json("chosen");
      break;
  }
  if (keep_collectives) return Json{{"what", json}, {"collectives", "keep"}};
  return gathers ? Json{{"what", json}, {"gathers", true}} : json;
}

RecomputePolicy read_recompute(const Json& given, std::shared_ptr<const ScriptReach> reach,
                               Problems& problems) {
  RecomputePolicy policy;
  if (is_function(given)) {
    policy.kind = RecomputePolicy::Kind::function;
    policy.what = op_function("recompute", given, std::move(reach));
    return policy;
  }
  if (given.is_object()) {
    if (given.contains("kind")) {
      read_registered(given, reach, policy, problems);
    } else {
      read_table(given, reach, policy, problems);
    }
    return policy;
  }
  const std::string text = given.is_string() ? given.get<std::string>() : json_text(given);
  if (text == "selective") policy.kind = RecomputePolicy::Kind::selective;
  if (text == "full") policy.kind = RecomputePolicy::Kind::full;
  if (text != "none" && policy.kind == RecomputePolicy::Kind::none) {
    try {
      if (given.is_string() && registered(*reach->catalog, text)) {
        read_registered({{"kind", text}}, reach, policy, problems);
        return policy;
      }
    } catch (const Error& error) {
      for (Problem problem : error.problems()) {
        if (problem.key.empty()) problem.key = "recompute";
        problems.add(std::move(problem));
      }
      return policy;
    }
    problems.add(Stage::options, "option.choice", "recompute",
                 fmt::format("recompute: there is no {}", quote(text)), recompute_forms);
  }
  return policy;
}

RecomputeSet resolve(const RecomputePolicy& policy, const Graph& graph, Problems& problems) {
  RecomputeSet set = policy.set;
  if (policy.kind == RecomputePolicy::Kind::fixed) {
    set.ops.resize(graph.ops().size());
    return set;
  }
  set.every = policy.every;
  set.keep_moves = policy.keep_collectives;
  set.gathers = policy.gathers;
  switch (policy.kind) {
    case RecomputePolicy::Kind::selective:
      set.ops = chosen_by(Selective(), graph);
      break;
    case RecomputePolicy::Kind::full:
      set.ops = chosen_by(Full(), graph);
      break;
    case RecomputePolicy::Kind::ops:
      set.ops = choose_ops(graph, "recompute.ops", policy.ops, problems);
      break;
    case RecomputePolicy::Kind::function:
    case RecomputePolicy::Kind::registered:
      set.ops = choose_ops(graph, policy.what);
      break;
    case RecomputePolicy::Kind::none:
    case RecomputePolicy::Kind::fit:
    case RecomputePolicy::Kind::fixed:
      set.ops = chosen_by(Nothing(), graph);
      break;
  }
  return set;
}

}  // namespace mw
