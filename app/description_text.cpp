// Writes a description as the Lua that mw.cluster and mw.stack read, key by key, with the source of
// what was fitted behind it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/calibrate.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr std::size_t widest = 100;  // columns

std::string comment(const std::string& text, const std::string& indent) {
  const std::string begin = indent + "-- ";
  std::string lines = wrapped(text, widest - begin.size());
  for (std::size_t at = 0; (at = lines.find('\n', at)) != std::string::npos; at += begin.size() + 1)
    lines.insert(at + 1, begin);
  return begin + lines + "\n";
}

// Rates as 312e9, sizes in full, seconds in few digits.
std::string number_text(double value) {
  const std::string billions = fmt::format("{:.6g}e9", value / 1e9);
  if (value >= 1e9 && value < 1e15 && std::stod(billions) == value) return billions;
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  return whole ? fmt::format("{:.0f}", value) : format_number(value);
}

std::string value_text(const Json& value) {
  if (value.is_number_float()) return number_text(value.get<double>());
  if (!value.is_array()) return lua_text(value);
  std::string inside;
  for (const Json& item : value) inside += (inside.empty() ? " " : ", ") + value_text(item);
  return "{" + inside + " }";
}

// A list over as many lines as it takes: points of curves, tiles.
std::string list_text(const Json& list, const std::string& indent) {
  const std::string whole = value_text(list);
  if (indent.size() + whole.size() + 24 < widest) return whole;
  std::string text = "{\n", line;
  for (const Json& item : list) {
    const std::string one = value_text(item) + ",";
    if (!line.empty() && indent.size() + 3 + line.size() + one.size() > widest) {
      text += indent + " " + line + "\n";
      line.clear();
    }
    line += " " + one;
  }
  return text + indent + " " + line + "\n" + indent + "}";
}

class DescriptionWriter {
 public:
  explicit DescriptionWriter(const Description& description) : description_(description) {}

  std::string table(const Json& table, const std::string& path, const std::string& indent) const {
    std::string text = "{\n";
    if (table.contains("name")) text += entry("name", table["name"], path, indent + "  ");
    for (const auto& [key, value] : table.items()) {
      const bool told = key != "name" && key != "kind" && key != "changed" && !key.starts_with("$");
      if (told) text += entry(key, value, path, indent + "  ");
    }
    return text + indent + "}";
  }

 private:
  std::string entry(const std::string& key, const Json& value, const std::string& path,
                    const std::string& indent) const {
    const std::string full = path.empty() ? key : path + "." + key;
    std::string text = said_of(full, indent) + indent + key + " = ";
    if (key == "curves") {
      text += curves(value, full, indent);
    } else if (value.is_array()) {
      text += list_text(value, indent);
    } else if (value.is_object() && !value.empty()) {
      text += table(value, full, indent);
    } else {
      text += value_text(value);
    }
    return text + ",\n";
  }

  std::string curves(const Json& list, const std::string& path, const std::string& indent) const {
    std::string text = "{\n";
    for (std::size_t k = 0; k < list.size(); ++k) {
      text += said_of(fmt::format("{}[{}]", path, k + 1), indent + "  ");
      text += indent + "  {\n";
      for (const auto& [key, value] : list[k].items()) {
        const std::string within = indent + "    ";
        text += fmt::format("{}{} = {},\n", within, key,
                            key == "points" ? list_text(value, within) : value_text(value));
      }
      text += indent + "  },\n";
    }
    return text + indent + "}";
  }

  std::string said_of(const std::string& key, const std::string& indent) const {
    const auto found = description_.sources.find(key);
    return found == description_.sources.end() ? "" : comment(found->second, indent);
  }

  const Description& description_;
};

}  // namespace

std::string description_text(const Description& description, const std::vector<std::string>& head) {
  std::string text;
  for (const std::string& sentence : head) text += comment(sentence, "");
  return text + "return " + DescriptionWriter(description).table(description.table, "", "") + "\n";
}

}  // namespace mw
