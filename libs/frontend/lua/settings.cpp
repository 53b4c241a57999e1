// Reads `--set key=value` and changes the tables that a script hands to the program.
#include "lua/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "meshwright/engine/mix.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

// "plan[2].ways" and "plan.2.ways" -> {"plan", "2", "ways"}.
std::vector<std::string> steps_of(const std::string& key) {
  std::vector<std::string> steps;
  std::string step;
  const auto finish = [&] {
    if (!step.empty()) steps.push_back(step);
    step.clear();
  };
  for (const char c : key) {
    if (c == '.' || c == '[' || c == ']') {
      finish();
    } else {
      step += c;
    }
  }
  finish();
  return steps;
}

bool all_digits(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

constexpr std::size_t longest = 160;   // most bytes of a value's text
constexpr const char* one_more = "+";  // the step of a key that adds an entry: observers[+]

// Whether mw.weave made the value.
bool is_weave(const Json& value) {
  return value.is_object() && value.value("kind", Json()) == "weave" && value.contains("order");
}

// The mix of a plan; empty: the value is no plan.
std::string mix_in(const Json& value) {
  return value.empty() ? "" : written_mix(value);
}

// The text of a value: of a cluster or a stack its name, of another table as much as fits a line.
std::string short_text(const Json& value) {
  if (!value.is_structured() || is_function(value)) return describe(value);
  if (is_weave(value)) return lua_text(value);
  if (std::string mix = mix_in(value); !mix.empty()) return mix;
  std::string text = json_text(without_hidden(value));
  if (text.size() <= longest) return text;
  if (value.is_object() && value.contains("kind") && value.contains("name"))
    return fmt::format("{} {}", describe(value["kind"]), describe(value["name"]));
  std::size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return fmt::format("{}… {} more bytes", text.substr(0, end), text.size() - end);
}

// The text of a setting's value, as it was typed where that is shorter.
std::string given_text(const Setting& setting) {
  if (!setting.value.is_structured() || is_function(setting.value)) return describe(setting.value);
  if (is_weave(setting.value)) return lua_text(setting.value);
  if (std::string mix = mix_in(setting.value); !mix.empty()) return mix;
  std::string text = json_text(without_hidden(setting.value));
  if (text.size() <= longest) return text;
  return setting.text.size() <= longest && setting.text.find('\n') == std::string::npos
             ? setting.text
             : short_text(setting.value);
}

// Lists the key as changed in a named cluster or stack. The number of a cluster's nodes is no part
// of its name.
void note_changed(const std::string& path, Json& experiment) {
  for (const std::string root : {"cluster", "stack"}) {
    if (!path.starts_with(root + ".")) continue;
    Json& table = experiment[root];
    const std::string key = path.substr(root.size() + 1);
    if (!table.contains("kind") || key == "nodes" || key == "name" || key == "changed") return;
    Json& changed = table["changed"];
    const std::string before = changed.is_string() ? changed.get<std::string>() : "";
    if ((", " + before + ",").find(", " + key + ",") != std::string::npos) return;
    changed = before.empty() ? key : before + ", " + key;
  }
}

// The number, from 1 to `size`, of the list's entry that `step` names; 0 if it names none.
std::size_t entry_of(const std::string& step, std::size_t size) {
  std::size_t index = 0;
  if (!all_digits(step) ||
      std::from_chars(step.data(), step.data() + step.size(), index).ec != std::errc())
    return 0;
  return index <= size ? index : 0;
}

}  // namespace

std::string without_spaces(std::string text) {
  text.erase(0, text.find_first_not_of(" \t"));
  text.erase(text.find_last_not_of(" \t") + 1);
  return text;
}

Setting parse_setting(const std::string& given) {
  const auto equals = given.find('=');
  Setting setting;
  setting.given = given;
  if (equals != std::string::npos) {
    setting.key = without_spaces(given.substr(0, equals));
    setting.text = without_spaces(given.substr(equals + 1));
  }
  if (steps_of(setting.key).empty() || setting.text.empty()) {
    throw Error(
        Stage::options, "set.form", "", fmt::format("--set {} is not of the form key=value", given),
        "for example --set steps=20 or --set plan[2].ways=4; nil takes a key away: --set log=nil");
  }
  return setting;
}

bool read_plainly(const std::string& text, Json& value) {
  if (text == "true" || text == "false") {
    value = text == "true";
    return true;
  }
  if (text == "nil") {
    value = nullptr;
    return true;
  }
  const char* end = text.data() + text.size();
  std::int64_t integer = 0;
  if (const auto [at, error] = std::from_chars(text.data(), end, integer);
      error == std::errc() && at == end) {
    value = integer;
    return true;
  }
  double number = 0;
  // from_chars takes "inf" and "nan", which are words here.
  const bool starts_as_number = text.find_first_of("0123456789") <= 1;
  if (const auto [at, error] = std::from_chars(text.data(), end, number);
      starts_as_number && error == std::errc() && at == end) {
    value = number;
    return true;
  }
  // A word, also "zb-h1", "8MiB" or "runs/{name}.h5": whatever cannot be meant as an expression.
  std::string plain = text;
  for (const std::string filled : {"{name}", "{seed}", "{hash}"}) {
    for (std::size_t at = 0; (at = plain.find(filled, at)) != std::string::npos;)
      plain.replace(at, filled.size(), "x");
  }
  const bool word = std::all_of(plain.begin(), plain.end(), [](unsigned char c) {
    return std::isalnum(c) || c >= 0x80 ||
           std::string_view("_-./~:,@ ").find(static_cast<char>(c)) != std::string_view::npos;
  });
  const bool starts_as_word = std::isalpha(static_cast<unsigned char>(plain[0])) ||
                              std::string_view("_./~").find(plain[0]) != std::string_view::npos;
  if (word && (starts_as_word || std::isalpha(static_cast<unsigned char>(plain.back())))) {
    value = text;
    return true;
  }
  return false;
}

AppliedSetting apply_setting(const Setting& setting, Json& experiment) {
  const std::vector<std::string> steps = steps_of(setting.key);
  Json* at = &experiment;
  std::string path, made;
  const auto refuse = [&](const std::string& why, const std::string& hint) {
    throw Error(
        Problem{Stage::options, "set.path", path, why, hint, place_of_setting(setting.given)});
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string& step = steps[i];
    const bool last = i + 1 == steps.size();
    if (at->is_null()) {
      *at = Json::object();
      if (made.empty()) made = path;
    }
    if (step == one_more) {
      if (path.empty()) refuse("[+] stands behind the key of a list", "for example observers[+]=…");
      if (at->is_object() && at->empty()) *at = Json::array();
      if (last && setting.value.is_null())
        refuse(fmt::format("{}[+] = nil would add nothing", path),
               "give the entry that is to be added");
      if (!at->is_array())
        refuse(fmt::format("{} is {}, which is no list, and takes no further entry", path,
                           describe(*at)),
               "");
      at->push_back(nullptr);
      path += fmt::format("[{}]", at->size());
      at = &at->back();
    } else if (at->is_array()) {
      const std::size_t index = entry_of(step, at->size());
      if (index == 0) {
        refuse(fmt::format("{} is a list of {} and has no entry {}", path, at->size(), step),
               at->empty() ? "" : fmt::format("entries: 1 to {}", at->size()));
      }
      at = &(*at)[index - 1];
      path += fmt::format("[{}]", index);
    } else if (at->is_object() && !is_function(*at)) {
      if (last && step == "1" && at->contains(unnamed_key)) {
        Json& unnamed = (*at)[unnamed_key];
        if (!unnamed.is_structured() && !setting.value.is_structured() && !setting.value.is_null())
          break;  // only the bare value of { 64, like = "ffn" } is set
        at = unnamed.is_array() && !unnamed.empty() ? &unnamed[0] : &unnamed;
        path += "[1]";
        continue;
      }
      if (last && setting.value.is_null() && !at->contains(step)) {
        return {setting.key, setting.key, fmt::format("{} = nil (it was not set)", setting.key),
                place_of_setting(setting.given)};
      }
      at = &(*at)[step];
      path += path.empty() ? step : "." + step;
    } else {
      refuse(fmt::format("{} is {}, which has no keys", path, describe(*at)), "");
    }
  }
  std::string stays;
  // A value may have names beside it, { 64, like = "ffn" }: another value leaves them.
  if (at->is_object() && at->contains(unnamed_key) && !at->at(unnamed_key).is_structured() &&
      !setting.value.is_structured() && !setting.value.is_null()) {
    Json rest = *at;
    rest.erase(unnamed_key);
    stays = "; " + lua_text(without_hidden(rest)) + " stays";
    at = &(*at)[unnamed_key];
  }
  std::string text =
      fmt::format("{} = {} ({}{})", path, given_text(setting),
                  at->is_null() ? "it was not set" : "was " + short_text(*at), stays);
  const bool other = *at != setting.value;
  *at = setting.value;
  if (made.empty()) made = path;
  if (other) note_changed(path, experiment);
  return {std::move(path), std::move(made), std::move(text), place_of_setting(setting.given)};
}

std::vector<std::string> changed_keys(const std::vector<Setting>& settings, const Json& before,
                                      const Json& after) {
  // Null where there is nothing; a value without a name stands at [1].
  const auto value_at = [](const Json& root, const std::string& key) {
    const Json* at = &root;
    for (const std::string& step : steps_of(key)) {
      if (step == one_more) break;
      if (at->is_object() && at->contains(step)) {
        at = &(*at)[step];
      } else if (at->is_object() && step == "1" && at->contains(unnamed_key)) {
        at = &(*at)[unnamed_key];
      } else if (at->is_array() && all_digits(step) && step.size() < 10 && std::stoul(step) >= 1 &&
                 std::stoul(step) <= at->size()) {
        at = &(*at)[std::stoul(step) - 1];
      } else {
        return Json();
      }
    }
    return without_hidden(*at);
  };
  std::vector<std::string> keys;
  for (const Setting& setting : settings) {
    std::vector<std::string> steps = steps_of(setting.key);
    if (steps.back() == one_more) steps.pop_back();
    const std::string key = join(steps, ".");
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    if (value_at(before, setting.key) != value_at(after, setting.key)) keys.push_back(key);
  }
  return keys;
}

std::string place_of_setting(const std::string& given) {
  return given.starts_with("--") ? given : "--set " + given;
}

}  // namespace mw
