// Compares the settings of two experiments key by key, and writes the differences as text.
#include "checkpoint/settings.h"

#include <fmt/format.h>

#include <set>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr std::size_t longest_value = 60;

std::string value_text(const Json& value) {
  if (value.is_null()) return "nothing";
  std::string text = json_text(value);
  if (text.size() > longest_value) text = text.substr(0, longest_value) + "…";
  return text;
}

constexpr const char* function_of_earlier = "a function";

bool is_hashed_function(const Json& value) {
  return value.is_object() && value.size() == 1 && value.contains("hash");
}

void compare_keys(const Json& there, const Json& here, const std::string& path,
                  std::vector<std::string>& found) {
  if (there == here) return;
  if (is_hashed_function(here)) {
    // Checkpoints of earlier versions do not say which function they had.
    if (there == function_of_earlier) return;
    if (is_hashed_function(there)) {
      found.push_back(path + ": another function");
      return;
    }
  }
  if (there.is_array() && here.is_array() && there.size() == here.size()) {
    for (std::size_t n = 0; n < here.size(); ++n)
      compare_keys(there[n], here[n], fmt::format("{}[{}]", path, n + 1), found);
    return;
  }
  if (!there.is_object() || !here.is_object()) {
    found.push_back(
        fmt::format("{}: {} there, {} here", path, value_text(there), value_text(here)));
    return;
  }
  std::set<std::string> keys;
  for (const Json* side : {&there, &here})
    for (const auto& [key, value] : side->items()) keys.insert(key);
  for (const std::string& key : keys)
    compare_keys(there.value(key, Json()), here.value(key, Json()),
                 path.empty() ? key : path + "." + key, found);
}

// The kinds of optimizers that the settings of one name, its own and those of its groups.
void add_kinds(const Json& settings, std::vector<std::string>& kinds) {
  if (settings.is_object() && settings.contains("kind"))
    kinds.push_back(settings["kind"].is_string() ? settings["kind"].get<std::string>() : "none");
  if (!settings.is_structured()) return;
  for (const auto& [key, item] : settings.items()) add_kinds(item, kinds);
}

// Checkpoints of earlier versions do not say which ops a model's functions recorded.
void compare_model_ops(const Json& there, const Json& here, std::vector<std::string>& found) {
  if (there.contains(model_ops) && here.contains(model_ops) && there[model_ops] != here[model_ops])
    found.push_back("model: its functions record other ops");
}

}  // namespace

std::vector<std::string> differences(const Json& there, const Json& here) {
  std::vector<std::string> found;
  const auto notes_content = [](const Json& settings) {
    return settings.contains("data") && settings["data"].is_object() &&
           settings["data"].contains("content");
  };
  Json known = here, kept = there;
  if (notes_content(here) && !notes_content(there)) known["data"].erase("content");
  // A file may have many paths, so its content decides whether the data are the same.
  if (notes_content(here) && notes_content(there))
    for (Json* settings : {&known, &kept}) erase_paths((*settings)["data"]);
  for (Json* settings : {&known, &kept}) settings->erase(model_ops);
  compare_keys(kept, known, "", found);
  compare_model_ops(there, here, found);
  return found;
}

std::vector<std::string> hard_differences(const Json& there, const Json& here) {
  std::vector<std::string> found;
  compare_keys(there.value("model", Json()), here.value("model", Json()), "model", found);
  compare_model_ops(there, here, found);
  // A sum of outer gradients that was under way ends after other steps than it began for.
  const auto overlaps = [](const Json& settings) {
    const Json replicas = settings.value("replicas", Json::object());
    return replicas.value("delay", 0) == 0
               ? Json()
               : Json{replicas.value("every", 0), replicas.value("fragments", 0),
                      replicas.value("delay", 0)};
  };
  if (overlaps(there) != overlaps(here))
    found.emplace_back(
        "replicas: another every, fragments or delay, and a sum of outer gradients "
        "may be under way");
  const auto kinds = [](const Json& settings) {
    std::vector<std::string> all;
    add_kinds(settings.value("optimizer", Json::object()), all);
    return join(all);
  };
  compare_keys(kinds(there), kinds(here), "optimizer.kind", found);
  return found;
}

}  // namespace mw
