// Reads a script's `recompute` and `offload`: which activations backward makes again instead of
// keeping them, and which lie in host memory.
#include "script/read_activations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "meshwright/choice.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "meshwright/recompute.h"
#include "predict/fit.h"

namespace mw {
namespace {

// The Lua function that a script gave as option `key`, called with { name, kind, class, layer }.
// Where it returns neither a boolean nor nil, the predicate throws Error (options).
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
          fmt::format("{}: the function returned {} for {}", key, lua_text(answer), op.name),
          "return true or false");
    }
    return answer.is_boolean() && answer.get<bool>();
  };
}

// Reads a list of names for option `key`; adds a problem with `hint` if it is none.
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

constexpr const char* recompute_forms =
    "\"none\", \"selective\", \"full\", \"fit\", { every = n }, { ops = { \"attention\" } }, { fit "
    "= \"8GiB\" }, or "
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
          .bytes("fit",
                 "memory limit of a rank: the cheapest set of ops that meets it is recomputed")
          .at_least(1)
          .optional()
          .boolean("by_stage", "fit chooses for each stage of a pipeline, not the same for all")
          .fallback(true)
          .boolean("offload",
                   "fit also chooses tensors that go to host memory instead, where that is faster")
          .fallback(false)
          .any("what",
               "\"none\", \"selective\", \"full\", \"fit\" or a function(op), as recompute itself "
               "takes them")
          .optional()
          .boolean("gathers", "repeat all-gathers in backward for every reader")
          .fallback(false)
          .choice("collectives", {"repeat", "keep"},
                  "repeat collectives in backward, or keep their results")
          .fallback("repeat");
  return options;
}

// Makes a policy that fits a rank into `limit`.
void read_fit(const MemoryLimit& limit, bool by_stage, RecomputePolicy& policy,
              Problems& problems) {
  if (limit.bytes <= 0) {
    policy.kind = RecomputePolicy::Kind::none;
    problems.add(Stage::options, "option.missing", "recompute",
                 "recompute: there is no limit to fit: neither memory nor a cluster is named",
                 "write recompute = { fit = \"8GiB\" }, or memory in the experiment, or a cluster");
    return;
  }
  policy.kind = RecomputePolicy::Kind::fit;
  if (limit.device)
    policy.search = by_stage ? fit_recompute_on_device : fit_recompute_alike_on_device;
  else
    policy.search = by_stage ? fit_recompute : fit_recompute_alike;
  policy.fit = limit.bytes;
}

// Refuses options of a word that takes none, { "full", 3 }; returns whether there were any.
bool takes_none(const std::string& key, const std::optional<NamedChoice>& choice, const Json& given,
                const char* forms, Problems& problems) {
  if (!choice || choice->options.empty()) return false;
  problems.add(
      Stage::options, "option.unknown", key,
      fmt::format("{}: {} takes no options; got {}", key, quote(choice->name), lua_text(given)),
      forms);
  return true;
}

void add_no_word(const std::string& key, const std::optional<NamedChoice>& choice,
                 const Json& given, const std::vector<std::string>& known, const char* forms,
                 Problems& problems) {
  const std::string near = choice ? did_you_mean(choice->name, known) : "";
  problems.add(
      Stage::options, "option.choice", key,
      fmt::format("{}: there is no {}", key, choice ? quote(choice->name) : describe(given)),
      near.empty() ? forms : near + " there are: " + forms);
}

// Reads a policy that a plugin registered.
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
    // A name of another kind ("attention" is an op), or an unknown one. Other codes: a broken
    // plugin.
    if (code != "option.choice" && code != "option.value") throw;
    return false;
  }
}

const std::map<std::string, RecomputePolicy::Kind>& words_of_recompute() {
  static const std::map<std::string, RecomputePolicy::Kind> words = {
      {"none", RecomputePolicy::Kind::none},
      {"selective", RecomputePolicy::Kind::selective},
      {"full", RecomputePolicy::Kind::full},
      {"fit", RecomputePolicy::Kind::fit},
  };
  return words;
}

// Reads what is recomputed, from key `key`: a word, a plugin's policy, or a function.
void read_what(const std::string& key, const Json& given,
               const std::shared_ptr<const ScriptReach>& reach, RecomputePolicy& policy,
               Problems& problems) {
  if (is_function(given)) {
    policy.kind = RecomputePolicy::Kind::function;
    policy.what = op_function(key, given, reach);
    return;
  }
  const auto& words = words_of_recompute();
  const auto choice = named_choice(given);
  if (const auto word = words.find(choice ? choice->name : ""); word != words.end()) {
    if (!takes_none(key, choice, given, recompute_forms, problems)) policy.kind = word->second;
    return;
  }
  try {
    if (choice && registered(*reach->catalog, choice->name))
      return read_registered(given, reach, policy, problems);
  } catch (const Error& error) {
    for (Problem problem : error.problems()) {
      if (problem.key.empty()) problem.key = key;
      problems.add(std::move(problem));
    }
    return;
  }
  std::vector<std::string> known;
  for (const auto& [word, kind] : words) known.push_back(word);
  for (const Registration* one : reach->catalog->list(Kind::recompute))
    known.emplace_back(one->name);
  add_no_word(key, choice, given, known, recompute_forms, problems);
}

void read_recompute_table(const Json& given, const char* key_of_what,
                          const std::shared_ptr<const ScriptReach>& reach,
                          const std::function<MemoryLimit()>& memory, RecomputePolicy& policy,
                          Problems& problems) {
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
                 "recompute: a table needs one of the keys what, every, ops, fit and gathers",
                 recompute_forms);
    return;
  }
  if (policy.gathers && values.text("collectives") == "keep") {
    problems.add(Stage::options, "option.conflict", "recompute.gathers",
                 "recompute: gathers = true repeats all-gathers, and collectives = \"keep\" stores "
                 "their results",
                 "take one of them");
  }
  policy.keep_collectives = values.text("collectives") == "keep";
  const Json what = values.has("what") ? values.at("what") : Json(said == 0 ? "none" : "full");
  read_what(key_of_what, what, reach, policy, problems);
  if (values.has("every")) policy.every = values.int32("every");
  if (values.has("fit") || policy.kind == RecomputePolicy::Kind::fit) {
    read_fit(values.has("fit") ? MemoryLimit{values.integer("fit")} : memory(),
             values.flag("by_stage"), policy, problems);
    policy.offload = values.flag("offload");
  } else if (values.flag("offload")) {
    problems.add(
        Stage::options, "option.conflict", "recompute.offload",
        "recompute.offload: only fit chooses what goes to host memory",
        "write recompute = { fit = \"8GiB\", offload = true }, or offload beside recompute");
  } else if (!values.flag("by_stage")) {
    problems.add(Stage::options, "option.conflict", "recompute.by_stage",
                 "recompute.by_stage: only fit chooses for each stage",
                 "leave it out, or write recompute = { fit = \"8GiB\", by_stage = false }");
  }
  if (values.has("ops")) {
    policy.kind = RecomputePolicy::Kind::ops;
    policy.ops = op_names("recompute.ops", values.at("ops"), recompute_forms, problems);
  }
}

constexpr const char* offload_forms =
    "\"none\", \"full\", { layers = n }, { ops = { \"attention\" } }, { least = \"64KiB\" }, or "
    "function(op) return true end";

const Options& offload_options() {
  static const Options options =
      Options()
          .integer("layers", "the first layers of each stage's part of the model")
          .at_least(1)
          .optional()
          .list("ops",
                "kinds of ops, or parts of their names: \"attention\", \"mlp\", \"rms_norm\"")
          .optional()
          .bytes("least", "tensors of a rank that are smaller stay")
          .at_least(0)
          .fallback(0)
          .integer("prefetch", "layers of backward by which tensors are back ahead of their own")
          .range(0, 1000)
          .fallback(0);
  return options;
}

void read_offload_table(const Json& given, OffloadPolicy& policy, Problems& problems) {
  Problems found;
  const Values values = offload_options().read(given, "offload", found);
  problems.add(found);
  if (!found.empty()) return;
  if (values.has("layers") && values.has("ops")) {
    problems.add(Stage::options, "option.conflict", "offload",
                 "offload: layers and ops are two ways to choose; take one", offload_forms);
    return;
  }
  policy.kind = OffloadPolicy::Kind::full;
  policy.least = values.integer("least");
  policy.prefetch = values.int32("prefetch");
  if (values.has("layers")) {
    policy.kind = OffloadPolicy::Kind::layers;
    policy.layers = values.int32("layers");
  }
  if (values.has("ops")) {
    policy.kind = OffloadPolicy::Kind::ops;
    policy.ops = op_names("offload.ops", values.at("ops"), offload_forms, problems);
  }
}

}  // namespace

RecomputePolicy read_recompute(const Json& given, std::shared_ptr<const ScriptReach> reach,
                               const std::function<MemoryLimit()>& memory, Problems& problems) {
  RecomputePolicy policy;
  const auto choice = is_function(given) ? std::nullopt : named_choice(given);
  if (choice && !words_of_recompute().contains(choice->name)) {
    read_what("recompute", given, reach, policy, problems);
  } else if (choice && choice->options.contains(unnamed_key)) {
    takes_none("recompute", choice, given, recompute_forms, problems);
  } else if (choice && choice->options.contains("what")) {
    problems.add(Stage::options, "option.twice", "recompute.what",
                 fmt::format("recompute.what is given twice: as {} and as {} without a name",
                             lua_text(choice->options["what"]), quote(choice->name)),
                 "keep one of the two");
  } else if (choice || is_function(given) || !given.is_object()) {
    Json table = choice ? choice->options : Json::object();
    table["what"] = choice ? Json(choice->name) : given;
    read_recompute_table(table, "recompute", reach, memory, policy, problems);
  } else {
    read_recompute_table(given, "recompute.what", reach, memory, policy, problems);
  }
  return policy;
}

OffloadPolicy read_offload(const Json& given, std::shared_ptr<const ScriptReach> reach,
                           Problems& problems) {
  OffloadPolicy policy;
  if (is_function(given)) {
    policy.kind = OffloadPolicy::Kind::function;
    policy.what = op_function("offload", given, std::move(reach));
    return policy;
  }
  if (given.is_object()) {
    read_offload_table(given, policy, problems);
    return policy;
  }
  const auto choice = named_choice(given);
  const std::string text = choice ? choice->name : describe(given);
  if (takes_none("offload", choice, given, offload_forms, problems)) return policy;
  if (text == "full") {
    policy.kind = OffloadPolicy::Kind::full;
  } else if (text != "none") {
    add_no_word("offload", choice, given, {"none", "full"}, offload_forms, problems);
  }
  return policy;
}

}  // namespace mw
