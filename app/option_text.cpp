// Describes declared options (type, range, default, doc) for `plugins show` and for JSON.
#include "app/option_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

const char* name_of(OptionType type) {
  static constexpr std::array names{"boolean", "integer", "number", "text",     "size",
                                    "choice",  "table",   "list",   "function", "any"};
  return names.at(static_cast<std::size_t>(type));
}

std::string limit(const Option& option, const Json& value) {
  return option.type == OptionType::bytes ? format_bytes(value.get<double>()) : describe(value);
}

}  // namespace

std::string type_text(const Option& option) {
  return option.type == OptionType::choice ? join_quoted(option.choices, " | ")
                                           : name_of(option.type);
}

std::string range_text(const Option& option) {
  if (option.least && option.most) {
    return limit(option, *option.least) + " .. " + limit(option, *option.most);
  }
  if (option.least) return ">= " + limit(option, *option.least);
  if (option.most) return "<= " + limit(option, *option.most);
  return "";
}

std::string default_text(const Option& option) {
  if (!option.fallback) return option.optional ? "none" : "required";
  const Json& value = *option.fallback;
  if (value.is_null()) return "none";
  if (option.type == OptionType::bytes && value.is_number())
    return format_bytes(value.get<double>());
  if (value.is_number_float()) return format_number(value.get<double>());
  return json_text(value);
}

std::string options_text(const Options& options, const std::string& indent) {
  if (options.list().empty()) return indent + "no options\n";
  const bool units = std::any_of(options.list().begin(), options.list().end(),
                                 [](const Option& option) { return !option.unit.empty(); });
  std::vector<std::string> header = {"option", "type", "range", "default"};
  if (units) header.emplace_back("unit");
  header.emplace_back("what it does");
  TextTable table(std::move(header));
  for (const Option& option : options.list()) {
    std::vector<std::string> row = {option.name, type_text(option), range_text(option),
                                    default_text(option)};
    if (units) row.push_back(option.unit);
    row.push_back(option.doc);
    table.add(std::move(row));
  }
  std::string text = table.text(indent);
  if (!options.positional().empty()) {
    text += fmt::format("{}A value without a name is {}.\n", indent, options.positional());
  }
  return text;
}

Json options_json(const Options& options) {
  Json list = Json::array();
  for (const Option& option : options.list()) {
    Json entry = {{"name", option.name}, {"type", name_of(option.type)}, {"doc", option.doc}};
    entry["required"] = !option.fallback && !option.optional;
    entry["default"] = option.fallback.value_or(nullptr);
    if (option.least) entry["least"] = *option.least;
    if (option.most) entry["most"] = *option.most;
    if (!option.choices.empty()) entry["choices"] = option.choices;
    if (!option.unit.empty()) entry["unit"] = option.unit;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace mw
