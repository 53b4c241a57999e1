// Chooses small values for options, and puts experiments together in which plugins are tried.
#include "app/kit_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "lua/script.h"
#include "meshwright/error.h"

namespace mw {
namespace {

const std::map<std::string, double>& usual_sizes() {
  static const std::map<std::string, double> sizes = {
      {"experts", 4},  {"ffn", 32},   {"heads", 4}, {"hidden", 16},
      {"kv_heads", 4}, {"layers", 4}, {"top_k", 2}, {"vocab", 32}};
  return sizes;
}

double sample_number(const Option& option, bool model, double otherwise) {
  const auto usual = usual_sizes().find(option.name);
  double value = model && usual != usual_sizes().end() ? usual->second : otherwise;
  if (option.least) value = std::max(value, option.least->get<double>());
  if (option.most) value = std::min(value, option.most->get<double>());
  return value;
}

Json plan_entries(const Json& experiment) {
  const Json& plan = experiment.contains("plan") ? experiment["plan"] : Json();
  if (plan.is_array()) return plan;
  return plan.is_object() && !plan.empty() ? Json::array({plan}) : Json::array();
}

// The file that says beside which mixes things are tried, and in which entries of a plan.
const Json& mixes_file() {
  static const Json read = kit_file("mixes.json");
  return read;
}

}  // namespace

Json kit_file(const std::string& name) {
  const std::filesystem::path path = lua_library().parent_path() / name;
  std::ifstream file(path);
  if (!file) {
    throw Error(Stage::environment, "kit.templates", "",
                fmt::format("there is no file {}", path.string()), "build or install again");
  }
  return Json::parse(file);
}

Json sample_options(const Options& options, bool model, std::vector<std::string>& unknown) {
  Json sample = Json::object();
  for (const Option& option : options.list()) {
    if (option.fallback || option.optional) continue;
    switch (option.type) {
      case OptionType::boolean:
        sample[option.name] = true;
        break;
      case OptionType::integer:
        sample[option.name] = static_cast<std::int64_t>(sample_number(option, model, 2));
        break;
      case OptionType::bytes:
        sample[option.name] = static_cast<std::int64_t>(sample_number(option, model, 1024));
        break;
      case OptionType::number:
        sample[option.name] = sample_number(option, model, 1e-2);
        break;
      case OptionType::choice:
        sample[option.name] = option.choices.front();
        break;
      default:
        unknown.push_back(option.name);
    }
  }
  return sample;
}

Json small_experiment(bool experts) {
  Json model = {{"kind", experts ? "moe" : "llama"},
                {"layers", 4},
                {"hidden", 16},
                {"heads", 4},
                {"kv_heads", 2},
                {"ffn", 32},
                {"vocab", 32}};
  if (experts) {
    model["experts"] = 4;
    model["top_k"] = 2;
  }
  return {{"model", model},
          {"data", {{"kind", "synthetic"}}},
          {"sequence", 8},
          {"plan", Json::array()},
          {"batch", 8},
          {"microbatch", 2},
          {"optimizer", {{"kind", "adamw"}, {"lr", 1e-2}}},
          {"steps", 3},
          {"timeout", 120}};
}

const std::vector<KitMix>& kit_mixes(const std::string& of) {
  static std::map<std::string, std::vector<KitMix>> read;
  std::vector<KitMix>& mixes = read[of];
  if (!mixes.empty()) return mixes;
  for (const Json& one : mixes_file().at(of)) {
    mixes.push_back({one.at("name").get<std::string>(), one.value("plugin", ""),
                     one.value("before", Json::array()), one.value("after", Json::array()),
                     one.value("keys", Json::object())});
  }
  return mixes;
}

Json plan_with(const std::string& kind, const Json& thing) {
  const Json& within = mixes_file().at("within").at(kind);
  Json entry = within.at("entry");
  entry[within.at("key").get<std::string>()] = thing;
  return Json::array({entry});
}

std::optional<Json> beside(const Json& experiment, const KitMix& mix) {
  Json plan = mix.before;
  for (const Json& entry : plan_entries(experiment)) {
    const bool same = entry.is_object() && entry.contains("plugin") && !mix.plugin.empty() &&
                      entry["plugin"] == mix.plugin;
    if (same) return std::nullopt;
    plan.push_back(entry);
  }
  plan.insert(plan.end(), mix.after.begin(), mix.after.end());
  Json mixed = experiment;
  mixed["plan"] = std::move(plan);
  mixed.update(mix.keys);
  return mixed;
}

}  // namespace mw
