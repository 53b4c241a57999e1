// The tables of a what-if as people read them.
#include <fmt/format.h>

#include <cmath>

#include "app/progress.h"
#include "app/what_if.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

std::string signed_share(double share) {
  const double percent = 100 * share;
  if (std::abs(percent) < 0.005) return "0 %";
  return fmt::format("{:+.{}f} %", percent, std::abs(percent) < 1 ? 2 : 1);
}

std::string whether_fits(const Json& row) {
  return !row.contains("fits") ? "?" : row["fits"].get<bool>() ? "yes" : "no";
}

std::string row_bytes(const Json& bytes) {
  return format_bytes(bytes.get<double>());
}

std::string what_if_rows(const Json& rows) {
  TextTable table({"what if", "", "value", "step", "change", "tokens/s", "memory", "fits", "basis",
                   "what changed"},
                  {2, 3, 4, 5, 6});
  for (const Json& row : rows) {
    std::vector<std::string> cells = {row["knob"].get<std::string>(),
                                      row["given"].get<std::string>(),
                                      row["shown"].get<std::string>()};
    if (row.contains("refused")) {
      for (std::string cell : {"-", "", "", "", "refused", ""}) cells.push_back(std::move(cell));
      cells.push_back(row["refused"].get<std::string>());
    } else {
      cells.push_back(duration_text(row["step_seconds"].get<double>()));
      cells.push_back(signed_share(row["change"].get<double>()));
      cells.push_back(format_count(row["tokens_per_second"].get<double>()));
      cells.push_back(row_bytes(row["peak_bytes"]));
      cells.push_back(whether_fits(row));
      cells.push_back(row["basis"].get<std::string>());
      cells.push_back(row["changed"].get<std::string>());
    }
    table.add(std::move(cells));
  }
  return table.text("  ");
}

std::string sensitivities_text(const Json& rows) {
  TextTable table({"a tenth more of", "of the step", "of tokens/s", "how"}, {1, 2});
  for (const Json& row : rows) {
    table.add({row["knob"].get<std::string>(), signed_share(row["worth"].get<double>()),
               signed_share(row["tokens_worth"].get<double>()), row["by"].get<std::string>()});
  }
  return table.text("  ");
}

}  // namespace

Json what_if_page(const Json& result) {
  Json rows = Json::array();
  for (const Json& row : result["rows"]) {
    Json shown = {{"name", fmt::format("{} {}", row["knob"].get<std::string>(),
                                       row["given"].get<std::string>())},
                  {"value", row["shown"]}};
    for (const char* key :
         {"step_seconds", "change", "tokens_per_second", "peak_bytes", "fits", "basis"})
      if (row.contains(key)) shown[key] = row[key];
    shown["changed"] = row.contains("refused") ? row["refused"] : row["changed"];
    rows.push_back(std::move(shown));
  }
  return {{"rows", rows}, {"sensitivities", result["sensitivities"]}};
}

std::string what_if_text(const Json& result) {
  std::string text = fmt::format(
      "what if, of {}\n  as it is {} a step, {} tokens/s, {} a rank; on {}\n\n",
      result["plan"].get<std::string>(), duration_text(result["step_seconds"].get<double>()),
      format_count(result["tokens_per_second"].get<double>()), row_bytes(result["peak_bytes"]),
      result["priced_for"].get<std::string>());
  text += what_if_rows(result["rows"]);
  if (!result["sensitivities"].empty()) text += "\n" + sensitivities_text(result["sensitivities"]);
  return text;
}

}  // namespace mw
