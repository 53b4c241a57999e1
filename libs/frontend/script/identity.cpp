// Tells experiments apart: hashes what decides a run's numbers, and names its log.
#include "script/identity.h"

#include <fmt/format.h>

#include <cctype>
#include <vector>

#include "checkpoint/settings.h"
#include "meshwright/engine/hash.h"
#include "meshwright/engine/text.h"
#include "script/read_experiment.h"

namespace mw {
namespace {

Json without_places(const Json& value) {
  Json out = value;
  if (value.is_object() && value.contains("function") && value.contains("hash"))
    out.erase("function");
  // depends on the functions that the script made before
  if (is_function(value)) out.erase(function_key);
  if (out.is_structured()) {
    for (auto& [key, item] : out.items()) item = without_places(item);
  }
  return out;
}

// Leaves out hashes of functions: a model may be written otherwise if it makes the same ops.
Json without_code(const Json& value) {
  if (value.is_object() && value.contains("hash") && value.size() == 1) return "a function";
  Json out = value;
  if (out.is_structured()) {
    for (auto& [key, item] : out.items()) item = without_code(item);
  }
  return out;
}

// 16 hex digits.
std::string hash_text(const std::string& text) {
  Fnv1a<std::uint64_t> hash;
  hash.add(text.data(), text.size());
  return fmt::format("{:016x}", hash.value());
}

template <class Number>
std::string hash_of_list(const std::vector<Number>& list) {
  return hash_text({reinterpret_cast<const char*>(list.data()), list.size() * sizeof(Number)});
}

// "{ dp(2), zero { 4, stage = 3 } }" -> "dp2-zero4-stage=3".
std::string file_name_of(const std::string& name) {
  std::string text;
  bool gap = false;
  const auto add = [&](char c) {
    if (gap && !text.empty()) text += '-';
    gap = false;
    text += c;
  };
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    if (c == '"' || c == '(') continue;
    if (c == '{' || c == '=') {  // spaces around these are no gap
      gap = false;
      if (c == '=') add(name[i]);
      while (i + 1 < name.size() && name[i + 1] == ' ') ++i;
    } else if (std::isalnum(c) != 0 || c >= 0x80 ||
               std::string_view("_.=+").find(name[i]) != std::string_view::npos) {
      add(name[i]);
    } else {
      gap = true;
    }
  }
  text.erase(0, text.find_first_not_of('.'));  // no hidden file
  return text.empty() ? "run" : text.substr(0, 150);
}

}  // namespace

Json resolved_value(const Json& value) {
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value) out.push_back(resolved_value(item));
    return out;
  }
  if (!value.is_object()) return value;
  if (is_function(value))
    return {{"function", value.value(defined_key, "")}, {"hash", value.value(code_key, "")}};
  Json out = Json::object();
  for (const auto& [key, item] : value.items()) {
    if (key == unnamed_key) {
      out["value"] = resolved_value(item);
    } else if (!key.starts_with('$')) {
      out[key] = resolved_value(item);
    }
  }
  return out;
}

namespace {

// The settings that decide a run's numbers, over which its hash is made.
Json deciding(const Json& resolved, const RunSetup& setup) {
  Json decides = without_places(resolved);
  for (const Option& option : experiment_options().list())
    if (option.of_run) decides.erase(option.name);
  // The plans' hashes stand for these keys: where a schedule's file lies, or in which form
  // something is written, decides nothing.
  for (const char* key : {"model", "plan", "recompute", "offload", "microbatch", "loss_scale",
                          "optimizer", "schedule"})
    decides.erase(key);
  std::vector<std::string> plans = {setup.plan->hash()};
  if (setup.step_plans) {
    plans.clear();
    for (const auto& plan : setup.step_plans->plans) plans.push_back(plan->hash());
    // A function may answer otherwise when it is asked again, or in another process.
    decides["step_plans"] = {hash_of_list(setup.step_plans->of_step),
                             hash_of_list(setup.step_plans->first)};
  }
  decides["plans"] = plans;
  // Contents count instead of paths: the file at a path may change, and a file may have several
  // paths.
  if (setup.data) {
    decides["tokens"] = {setup.data->tokens(), setup.data->content()};
    if (!setup.data->content().empty()) erase_paths(decides["data"]);
  }
  if (setup.held_out_data) {
    decides["held_out"] = setup.held_out_data->content();
    if (!setup.held_out_data->content().empty()) erase_paths(decides["evaluate"]["data"]);
  }
  return decides;
}

// A hash that does not depend on the order of a table's keys.
std::string hash_of_sorted(const Json& decides) {
  return hash_text(nlohmann::json::parse(json_text(decides)).dump());
}

}  // namespace

ExperimentHashes hashes_of(const Json& resolved, const RunSetup& setup) {
  Json decides = deciding(resolved, setup);
  ExperimentHashes hashes{hash_of_sorted(decides), ""};
  decides.erase("seed");
  hashes.without_seed = hash_of_sorted(decides);
  return hashes;
}

Json identity_of(const RunRequest& asked, std::int64_t seed) {
  return {{"name", asked.name},
          {"hash", asked.hash},
          {"hash_without_seed", asked.hash_without_seed},
          {"seed", seed},
          {"experiment", asked.resolved}};
}

Json settings_to_resume(const RunRequest& asked, const RunSetup& setup) {
  const Json all = without_places(asked.resolved);
  Json settings = Json::object();
  for (const Option& option : experiment_options().list())
    if (!option.may_change && all.contains(option.name)) settings[option.name] = all[option.name];
  settings["model"] = without_code(settings.value("model", Json()));
  if (const Json made_of = setup.plan->request.model->made_of(); !made_of.is_null())
    settings[model_ops] = hash_of_sorted(made_of);
  // How a batch is cut may change on resuming, unless the cut may make the batches of steps differ.
  // It then counts also where all steps of this run are alike, as a longer run's may not be.
  if (asked.shapes_steps) settings["microbatch"] = all.value("microbatch", Json());
  if (const StrategyChoice* replicas = setup.plan->replicas())
    settings["replicas"] = without_code(replicas->options);
  if (setup.data) {
    settings["data"]["tokens"] = setup.data->tokens();
    const std::string content = setup.data->content();
    if (!content.empty()) settings["data"]["content"] = hash_text(content);
  }
  // A schedule that ends with the run is another one where the run is longer.
  const Json schedule = settings.value("schedule", Json::object());
  if (schedule.is_object() && schedule.contains("kind") && schedule["kind"] != "constant" &&
      !schedule.contains("total"))
    settings["schedule"]["total"] = setup.steps;
  return settings;
}

std::string fill_in_path(const std::string& key, const std::string& log, const RunRequest& asked,
                         std::int64_t seed, Problems& problems) {
  std::string text;
  for (std::size_t at = 0; at < log.size();) {
    const std::size_t open = log.find('{', at), close = log.find('}', open);
    text += log.substr(at, open - at);
    if (open == std::string::npos) break;
    const std::string word =
        close == std::string::npos ? log.substr(open + 1) : log.substr(open + 1, close - open - 1);
    if (word == "name") {
      text += file_name_of(asked.name);
    } else if (word == "seed") {
      text += std::to_string(seed);
    } else if (word == "hash") {
      text += asked.hash;
    } else {
      const std::string near = did_you_mean(word, {"name", "seed", "hash"});
      problems.add(Stage::options, "log.word", key,
                   fmt::format("{}: {{{}}} is not known", key, word),
                   near.empty() ? "there are {name}, {seed} and {hash}" : near);
    }
    if (close == std::string::npos) break;
    at = close + 1;
  }
  return text;
}

}  // namespace mw
