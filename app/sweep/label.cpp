// Names the values of a grid's axes as people would: a plan by its mix, a number by itself.
#include "app/sweep/label.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "meshwright/engine/mix.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr std::size_t longest_label = 60, longest_file = 48, longest_number = 10;

bool is_made(const Json& value) {
  return value.is_object() && value.contains("kind");
}

std::string made_label(const Json& value) {
  std::string inside, name;
  const auto add = [&](const std::string& text) { inside += inside.empty() ? text : ", " + text; };
  for (const auto& [key, item] : value.items()) {
    if (key == "kind") {
      name = item.is_string() ? item.get<std::string>() : json_text(item);
    } else if (key == unnamed_key) {
      add(value_label(item));
    } else if (!key.starts_with('$')) {
      add(key + "=" + value_label(item));
    }
  }
  return name + "(" + inside + ")";
}

std::string cut(std::string text) {
  if (display_width(text) <= longest_label) return text;
  std::size_t end = longest_label;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "…";
}

// The tables without the keys that are equal in all of them.
std::vector<Json> what_differs(const std::vector<Json>& values) {
  std::vector<Json> left = values;
  for (const auto& each : values.front().items()) {
    const std::string& key = each.key();
    const Json& item = each.value();
    if (key == "kind") continue;
    const bool alike = std::all_of(values.begin(), values.end(), [&](const Json& value) {
      return value.contains(key) && without_hidden(value.at(key)) == without_hidden(item);
    });
    if (!alike) continue;
    for (Json& value : left) value.erase(key);
  }
  return left;
}

}  // namespace

std::string value_label(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (is_function(value)) return "function " + value.value(code_key, "").substr(0, 6);
  if (value.is_structured() && value.empty()) return mix_text({});
  if (std::string mix = written_mix(value); !mix.empty()) return mix;
  if (is_made(value)) return cut(made_label(value));
  if (value.is_array()) {
    std::vector<std::string> texts;
    for (const Json& item : value) texts.push_back(value_label(item));
    return cut("{" + join(texts) + "}");
  }
  if (value.is_object()) {
    std::string text;
    for (const auto& [key, item] : value.items()) {
      if (!key.starts_with('$')) text += (text.empty() ? "" : ", ") + key + "=" + value_label(item);
    }
    return cut(text);
  }
  std::string exact = describe(value);
  if (!value.is_number_float() || exact.size() <= longest_number) return exact;
  return fmt::format("{:.6g}", value.get<double>());  // 3 * 1e-5 is 3.0000000000000004e-05
}

std::vector<std::string> value_labels(const std::vector<Json>& values) {
  const bool of_a_kind =
      values.size() > 1 && std::all_of(values.begin(), values.end(), [&](const Json& value) {
        return value.is_object() && value.contains("kind") &&
               value["kind"] == values.front().value("kind", Json());
      });
  std::vector<std::string> labels;
  for (const Json& value : of_a_kind ? what_differs(values) : values)
    labels.push_back(value_label(value));
  // Numbers that six digits do not tell apart are written out.
  if (std::set<std::string>(labels.begin(), labels.end()).size() < labels.size()) {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (values[i].is_number()) labels[i] = describe(values[i]);
  }
  std::set<std::string> used;
  for (std::string& label : labels) {
    const std::string own = label;
    for (int n = 2; !used.insert(label).second; ++n) label = own + " #" + std::to_string(n);
  }
  return labels;
}

std::string file_label(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (plain) {
      name += c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
    if (name.size() == longest_file) break;
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "cell" : name;
}

}  // namespace mw
