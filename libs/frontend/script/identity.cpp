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
  if (is_function(value)) out.erase(function_key);  // how many the script has made before
  if (out.is_structured()) {
    for (auto& [key, item] : out.items()) item = without_places(item);
  }
  return out;
}

// A model may be written in another way and go on: what its functions make is compared instead.
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
    if (c == '{' || c == '=') {  // what is around them in a mix's name is no gap
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

// What decides a run's numbers: what its hash is made of.
Json deciding(const Experiment& experiment) {
  Json decides = without_places(experiment.resolved);
  for (const Option& option : experiment_options().list())
    if (option.of_run) decides.erase(option.name);
  // The plans' hashes know more of these: where a schedule's file lies, or in which form something
  // is written, decides nothing.
  for (const char* key : {"model", "plan", "recompute", "offload", "microbatch", "loss_scale",
                          "optimizer", "schedule"})
    decides.erase(key);
  std::vector<std::string> plans = {experiment.plan->hash()};
  if (experiment.step_plans) {
    plans.clear();
    for (const auto& plan : experiment.step_plans->plans) plans.push_back(plan->hash());
    // A function may answer otherwise when it is asked again, or in another process.
    decides["step_plans"] = {hash_of_list(experiment.step_plans->of_step),
                             hash_of_list(experiment.step_plans->first)};
  }
  decides["plans"] = plans;
  // The files under a name may be others, and a file may have several names.
  if (experiment.data) {
    decides["tokens"] = {experiment.data->tokens(), experiment.data->content()};
    if (!experiment.data->content().empty()) decides["data"].erase("path");
  }
  if (experiment.held_out_data) {
    decides["held_out"] = experiment.held_out_data->content();
    if (!experiment.held_out_data->content().empty()) decides["evaluate"]["data"].erase("path");
  }
  return decides;
}

// Sorted by key: in whatever order a table was written.
std::string hash_of_sorted(const Json& decides) {
  return hash_text(nlohmann::json::parse(json_text(decides)).dump());
}

}  // namespace

ExperimentHashes hashes_of(const Experiment& experiment) {
  Json decides = deciding(experiment);
  ExperimentHashes hashes{hash_of_sorted(decides), ""};
  decides.erase("seed");
  hashes.without_seed = hash_of_sorted(decides);
  return hashes;
}

Json identity_of(const Experiment& experiment) {
  return {{"name", experiment.name},
          {"hash", experiment.hash},
          {"hash_without_seed", experiment.hash_without_seed},
          {"seed", experiment.seed},
          {"experiment", experiment.resolved}};
}

Json settings_to_resume(const Experiment& experiment) {
  const Json all = without_places(experiment.resolved);
  Json settings = Json::object();
  for (const Option& option : experiment_options().list())
    if (!option.may_change && all.contains(option.name)) settings[option.name] = all[option.name];
  settings["model"] = without_code(settings.value("model", Json()));
  if (const Json made_of = experiment.plan->request.model->made_of(); !made_of.is_null())
    settings[model_ops] = hash_of_sorted(made_of);
  // How a batch is cut is the mix's; where it may make the batches of steps differ it is not. It
  // counts also where all steps of this run are alike, as a longer run's may not be.
  if (experiment.shapes_steps) settings["microbatch"] = all.value("microbatch", Json());
  if (experiment.data) {
    settings["data"]["tokens"] = experiment.data->tokens();
    const std::string content = experiment.data->content();
    if (!content.empty()) settings["data"]["content"] = hash_text(content);
  }
  // A schedule that ends with the run is another one where the run is longer.
  const Json schedule = settings.value("schedule", Json::object());
  if (schedule.is_object() && schedule.contains("kind") && schedule["kind"] != "constant" &&
      !schedule.contains("total"))
    settings["schedule"]["total"] = experiment.steps;
  return settings;
}

std::string fill_in_path(const std::string& key, const std::string& log,
                         const Experiment& experiment, Problems& problems) {
  std::string text;
  for (std::size_t at = 0; at < log.size();) {
    const std::size_t open = log.find('{', at), close = log.find('}', open);
    text += log.substr(at, open - at);
    if (open == std::string::npos) break;
    const std::string word =
        close == std::string::npos ? log.substr(open + 1) : log.substr(open + 1, close - open - 1);
    if (word == "name") {
      text += file_name_of(experiment.name);
    } else if (word == "seed") {
      text += std::to_string(experiment.seed);
    } else if (word == "hash") {
      text += experiment.hash;
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
