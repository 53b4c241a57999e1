// Compares a config.json with a model, key by key, and writes the one that an exported model has.
#include "checkpoint/hf_config.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "meshwright/engine/json_text.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr std::uintmax_t most_config_bytes = 10'000'000;

// "rope_parameters.rope_theta" in its table; null where it is not there.
const Json* find(const Json& config, const std::string& name) {
  const std::size_t dot = name.find('.');
  const auto found = config.find(name.substr(0, dot));
  if (found == config.end()) return nullptr;
  if (dot == std::string::npos) return &*found;
  return found->is_object() ? find(*found, name.substr(dot + 1)) : nullptr;
}

void set(Json& config, const std::string& name, const Json& value) {
  const std::size_t dot = name.find('.');
  Json& place = config[name.substr(0, dot)];
  if (dot == std::string::npos)
    place = value;
  else
    set(place, name.substr(dot + 1), value);
}

bool same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    const double x = a.get<double>(), y = b.get<double>();
    return std::abs(x - y) <= 1e-9 * std::max(std::abs(x), std::abs(y));
  }
  return a == b;
}

bool fits(const HfKey& key, const Json& theirs) {
  return same(theirs, key.value) ||
         std::any_of(key.alike.begin(), key.alike.end(),
                     [&](const Json& other) { return same(theirs, other); });
}

Json read_config(const fs::path& file) {
  std::error_code error;
  if (fs::file_size(file, error) > most_config_bytes || error) return {};
  std::ifstream in(file);
  return Json::parse(in, nullptr, /*allow_exceptions=*/false);
}

const char* name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return "float32";
  }
}

}  // namespace

std::optional<HfConfig> hf_config_of(const Model& model, std::int64_t sequence) {
  const auto* known = dynamic_cast<const HfModel*>(&model);
  if (known == nullptr) return std::nullopt;
  return known->hf_config(sequence);
}

fs::path config_beside(const fs::path& weights) {
  std::error_code error;
  const fs::path folder = fs::is_directory(weights, error) ? weights : weights.parent_path();
  fs::path file = folder / "config.json";
  return fs::is_regular_file(file, error) ? file : fs::path();
}

void check_hf_config(const fs::path& file, const std::string& model, const HfConfig& config,
                     Problems& problems) {
  if (file.empty()) return;
  const Json theirs = read_config(file);
  if (!theirs.is_object()) {
    problems.add(Stage::options, "weights.config-file", "weights",
                 fmt::format("weights: {} is no JSON table", file.string()));
    return;
  }
  const auto refuse = [&](const std::string& what, const std::string& hint) {
    problems.add(Stage::options, "weights.config", "weights",
                 fmt::format("weights: {}: {}", file.string(), what), hint);
  };
  const Json* type = find(theirs, "model_type");
  if (type != nullptr &&
      std::find(config.types.begin(), config.types.end(), *type) == config.types.end()) {
    refuse(fmt::format("model_type is {}, and mw.{} with these options is {}", json_text(*type),
                       model, fmt::join(config.types, " or ")),
           "another model, or other weights; without config.json the tensors alone are compared");
    return;  // its keys mean other things
  }
  for (const HfKey& key : config.keys) {
    const Json* said = nullptr;
    std::string name = key.names.front();
    for (std::size_t n = 0; said == nullptr && n < key.names.size(); ++n) {
      said = find(theirs, key.names[n]);
      if (said != nullptr) name = key.names[n];
    }
    if (said == nullptr && (key.absent.is_null() || fits(key, key.absent))) continue;
    if (said != nullptr && fits(key, *said)) continue;
    const std::string value = said != nullptr ? fmt::format("{} is {}", name, json_text(*said))
                                              : fmt::format("{} is not there, which means {}", name,
                                                            json_text(key.absent));
    const Json& wanted = said != nullptr ? *said : key.absent;
    if (key.option.empty()) {
      refuse(fmt::format("{}, and mw.{} has {}", value, model, json_text(key.value)),
             "mw." + model + " does not compute such a model");
      continue;
    }
    refuse(fmt::format("{}, and the model has {} = {}", value, key.option,
                       key.value.is_null() ? "nil" : json_text(key.value)),
           fmt::format("{} = {}", key.option, wanted.is_null() ? "nil" : json_text(wanted)));
  }
}

std::string hf_config_text(const HfConfig& config, at::ScalarType dtype, const fs::path& earlier) {
  Json text = {{"architectures", {config.architecture}}, {"model_type", config.types.front()}};
  for (const HfKey& key : config.keys) set(text, key.names.front(), key.value);
  text.update(config.more);
  const Json before = earlier.empty() ? Json() : read_config(earlier);
  for (const char* id : {"bos_token_id", "eos_token_id", "pad_token_id"})
    text[id] = before.is_object() && before.contains(id) ? before[id] : Json();
  text["use_cache"] = true;
  text["dtype"] = name_of(dtype);
  text["torch_dtype"] = name_of(dtype);  // its name before version 5
  return text.dump(2) + "\n";
}

}  // namespace mw
