// Describes declared options (type, range, default, doc) for JSON and for the texts made of it.
#include "app/option_text.h"

#include <array>

namespace mw {
namespace {

const char* name_of(OptionType type) {
  static constexpr std::array names{"boolean", "integer", "number", "text",     "size",
                                    "choice",  "table",   "list",   "function", "any"};
  return names.at(static_cast<std::size_t>(type));
}

}  // namespace

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
