// Writes JSON as text, as JSON and as the Lua that a script's author would write, and looks up
// where in a script a table was written.
#include "meshwright/engine/json_text.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>

#include "meshwright/engine/text.h"

namespace mw {

std::string json_text(const Json& value, int indent) {
  std::string text = value.dump(indent, ' ', false, Json::error_handler_t::replace);
  // JSON lets DEL, the control characters U+0080 to U+009F, and those that turn the direction of
  // what follows (U+202A to U+202E, U+2066 to U+2069) stand as they are; terminals obey them.
  std::string out;
  std::size_t kept = 0;
  const auto byte = [&text](std::size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    std::size_t length = 1;
    if (byte(i) == 0x7f) {
      code = 0x7f;
    } else if (byte(i) == 0xc2 && byte(i + 1) < 0xa0) {
      code = byte(i + 1);
      length = 2;
    } else if (byte(i) == 0xe2 &&
               ((byte(i + 1) == 0x80 && byte(i + 2) >= 0xaa && byte(i + 2) <= 0xae) ||
                (byte(i + 1) == 0x81 && byte(i + 2) >= 0xa6 && byte(i + 2) <= 0xa9))) {
      code = 0x2000 + (byte(i + 1) - 0x80) * 0x40 + (byte(i + 2) - 0x80);
      length = 3;
    }
    if (code == 0) continue;
    out.append(text, kept, i - kept);
    out += fmt::format("\\u{:04x}", code);
    kept = i + length;
    i = kept - 1;
  }
  if (kept == 0) return text;
  return out.append(text, kept);
}

bool is_function(const Json& value) {
  return value.is_object() && value.contains(function_key);
}

std::string describe(const Json& value) {
  if (value.is_null()) return "nil";
  if (value.is_string()) return quote(value.get<std::string>());
  if (value.is_number_float()) return format_number(value.get<double>());
  if (value.is_array())
    return value.empty() ? "an empty table" : fmt::format("a list of {}", value.size());
  if (is_function(value)) return "a function";
  if (value.is_object()) return value.empty() ? "an empty table" : "a table";
  return json_text(value);
}

std::string lua_text(const Json& value) {
  if (is_function(value)) return "function(…) … end";
  if (value.is_null()) return "nil";
  if (!value.is_structured()) return json_text(value);
  std::string inside;
  for (const auto& [key, item] : value.items()) {
    if (key.starts_with("$") && key != unnamed_key) continue;
    const bool unnamed = value.is_array() || key == unnamed_key;
    if (key == unnamed_key && item.is_array()) {  // several, beside those with names
      for (const Json& one : item) inside += (inside.empty() ? " " : ", ") + lua_text(one);
      continue;
    }
    inside += inside.empty() ? " " : ", ";
    inside += unnamed ? lua_text(item) : key + " = " + lua_text(item);
  }
  return "{" + inside + " }";
}

std::string entry_text(const Json& entry) {
  const std::string inside = entry.contains("ways") ? json_text(entry.at("ways")) : "";
  std::string options;
  for (const auto& [key, value] : entry.items()) {
    if (key == "plugin" || key == "ways" || key.starts_with("$")) continue;
    options += fmt::format("{}{} = {}", options.empty() ? "" : ", ", key, lua_text(value));
  }
  const std::string name = entry.at("plugin").get<std::string>();
  if (options.empty()) return fmt::format("{}({})", name, inside);
  return fmt::format("{} {{ {}{}{} }}", name, inside, inside.empty() ? "" : ", ", options);
}

bool lies_in(const std::string& key, const std::string& table) {
  if (!key.starts_with(table)) return false;
  return table.empty() || key.size() == table.size() || key[table.size()] == '.' ||
         key[table.size()] == '[';
}

std::string key_in(const std::string& table, const std::string& key) {
  if (lies_in(key, table)) return key;
  return key.empty() ? table : table + (key.front() == '[' ? "" : ".") + key;
}

std::string place_of(const Json& root, const std::string& path) {
  std::string place;
  const Json* at = &root;
  std::size_t i = 0;
  while (true) {
    if (at->is_object() && at->contains(place_key) && at->at(place_key).is_string()) {
      place = at->at(place_key).get<std::string>();
    }
    if (i >= path.size()) return place;
    if (path[i] == '[') {
      std::size_t index = 0;
      const std::size_t start = ++i;
      while (i < path.size() && std::isdigit(static_cast<unsigned char>(path[i])) &&
             i - start < 9) {
        index = index * 10 + static_cast<std::size_t>(path[i++] - '0');
      }
      if (i >= path.size() || path[i] != ']' || i == start) return place;
      ++i;
      if (!at->is_array() || index < 1 || index > at->size()) return place;
      at = &(*at)[index - 1];
    } else {
      if (path[i] == '.') ++i;
      const std::size_t start = i;
      while (i < path.size() &&
             (std::isalnum(static_cast<unsigned char>(path[i])) || path[i] == '_'))
        ++i;
      if (i == start || !at->is_object()) return place;
      const std::string key = path.substr(start, i - start);
      auto found = at->find(key);
      if (found == at->end() && at->contains(strategy_key)) {
        at = &at->at(strategy_key);
        if (!at->is_object()) return place;
        if (at->contains(place_key) && at->at(place_key).is_string())
          place = at->at(place_key).get<std::string>();
        found = at->find(key);
      }
      if (found == at->end()) return place;
      at = &*found;
    }
  }
}

Json json_of(const Problem& problem) {
  Json json = {{"stage", name_of(problem.stage)},
               {"code", problem.code},
               {"key", problem.key},
               {"message", problem.message},
               {"hint", problem.hint},
               {"file", nullptr},
               {"line", nullptr}};
  // "script.lua:12"; a setting of the command line has no line.
  const auto colon = problem.place.rfind(':');
  const std::string digits = colon == problem.place.npos ? "" : problem.place.substr(colon + 1);
  int line = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), line);
  if (!digits.empty() && error == std::errc() && end == digits.data() + digits.size()) {
    json["file"] = problem.place.substr(0, colon);
    json["line"] = line;
  }
  return json;
}

Json without_hidden(const Json& value) {
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value) out.push_back(without_hidden(item));
    return out;
  }
  if (!value.is_object()) return value;
  Json out = Json::object();
  if (is_function(value)) {
    for (const char* key : {function_key, code_key}) {
      if (value.contains(key)) out[key] = value[key];
    }
    return out;
  }
  for (const auto& [key, item] : value.items()) {
    if (key == unnamed_key) out["value"] = without_hidden(item);
    if (!key.starts_with('$')) out[key] = without_hidden(item);
  }
  return out;
}

}  // namespace mw
