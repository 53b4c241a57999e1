// Compares the settings of two experiments, key by key, for people.
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

void compare_keys(const Json& there, const Json& here, const std::string& path,
                  std::vector<std::string>& found) {
  if (there == here) return;
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

}  // namespace

std::vector<std::string> differences(const Json& there, const Json& here) {
  std::vector<std::string> found;
  const auto notes_content = [](const Json& settings) {
    return settings.contains("data") && settings["data"].is_object() &&
           settings["data"].contains("content");
  };
  Json known = here, kept = there;
  if (notes_content(here) && !notes_content(there)) known["data"].erase("content");
  // A file has many names: what is in the files says whether the data are the same.
  if (notes_content(here) && notes_content(there))
    for (Json* settings : {&known, &kept}) (*settings)["data"].erase("path");
  compare_keys(kept, known, "", found);
  return found;
}

std::vector<std::string> hard_differences(const Json& there, const Json& here) {
  std::vector<std::string> found;
  compare_keys(there.value("model", Json()), here.value("model", Json()), "model", found);
  const auto kind = [](const Json& settings) {
    return settings.value("optimizer", Json::object()).value("kind", Json());
  };
  compare_keys(kind(there), kind(here), "optimizer.kind", found);
  return found;
}

}  // namespace mw
