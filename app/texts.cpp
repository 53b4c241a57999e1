// The functions of the program that texts of the Lua library are made with.
#include "app/texts.h"

#include "app/progress.h"
#include "app/runs_rows.h"
#include "lua/library.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "predict/prediction.h"

namespace mw {
namespace {

using Row = std::vector<std::string>;

// table(header, { columns to align to the right, from 1 }, rows, indent)
Json table(const Json& a) {
  std::vector<std::size_t> right;
  for (const Json& column : a[1]) right.push_back(column.get<std::size_t>() - 1);
  TextTable table(a[0].get<Row>(), right);
  for (const Json& row : a[2]) table.add(row.get<Row>());
  return table.text(a.size() > 3 ? a[3].get<std::string>() : "");
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
      {"line", [](const Json& a) { return readable_line(a[0].get<std::string>()); }},
      {"table", table},
  };
  return call_library("texts." + name, value, functions);
}

}  // namespace mw
