// Makes texts with the Lua library, which may call these functions of the program.
#include "app/texts.h"

#include <ctime>

#include "app/progress.h"
#include "app/runs_rows.h"
#include "lua/library.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "predict/prediction.h"
#include "record/account.h"
#include "record/run_result.h"

namespace mw {
namespace {

using Row = std::vector<std::string>;

// table(header, { columns to align to the right, from 1 }, rows, indent)
Json aligned_table(const Json& a) {
  std::vector<std::size_t> right;
  for (const Json& column : a[1]) right.push_back(column.get<std::size_t>() - 1);
  TextTable table(a[0].get<Row>(), right);
  for (const Json& row : a[2]) table.add(row.get<Row>());
  return table.text(a.size() > 3 ? a[3].get<std::string>() : "");
}

// The leaves of a table: { key, value as an error names it, value as a list shows it }; null has no
// third.
Json leaves_text(const Json& a) {
  Json list = Json::array();
  for (const auto& [key, value] : leaves(a[0])) {
    list.push_back({key, describe(value)});
    if (value.is_null()) continue;
    list.back().push_back(value.is_string() ? value : Json(json_text(value)));
  }
  return list;
}

// A UTC time of the JSON, in the reader's time zone.
Json local_time(const Json& a) {
  if (!a[0].is_string()) return "-";
  std::tm utc{};
  if (::strptime(a[0].get<std::string>().c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc) == nullptr)
    return a[0];
  const std::time_t at = ::timegm(&utc);
  std::tm local{};
  ::localtime_r(&at, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &local);
  return text;
}

}  // namespace

Json from_library(const std::string& name, const Json& value) {
  static const std::map<std::string, LibraryFunction> functions = {
      {"bytes", [](const Json& a) { return format_bytes(a[0].get<double>()); }},
      {"count", [](const Json& a) { return format_count(a[0].get<double>()); }},
      {"duration", [](const Json& a) { return duration_text(a[0].get<double>()); }},
      {"number", [](const Json& a) { return format_number(a[0].get<double>()); }},
      {"json", [](const Json& a) { return json_text(a[0]); }},
      {"lua", [](const Json& a) { return lua_text(a[0]); }},
      {"describe", [](const Json& a) { return describe(a[0]); }},
      {"line", [](const Json& a) { return readable_line(a[0].get<std::string>()); }},
      {"plural",
       [](const Json& a) { return plural(a[0].get<std::int64_t>(), a[1].get<std::string>()); }},
      {"wrapped",
       [](const Json& a) {
         return wrapped(a[0].get<std::string>(), a[1].get<std::size_t>(), a[2].get<std::size_t>());
       }},
      {"field", [](const Json& a) { return field_text(a[0].get<std::string>(), a[1]); }},
      {"leaves", leaves_text},
      {"local_time", local_time},
      {"account_part", [](const Json& a) { return account_part_text(a[0].get<std::string>()); }},
      {"table", aligned_table},
  };
  return call_library("texts." + name, value, functions);
}

}  // namespace mw
