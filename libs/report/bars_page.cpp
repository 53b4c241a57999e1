// Makes the page of a script's own bar chart.
#include "report/bars_page.h"

#include <fmt/chrono.h>

#include <ctime>

#include "meshwright/engine/version.h"
#include "report/page.h"

namespace mw {
namespace {

std::string shown(const Json& name) {
  return page_text(name.is_string() ? name.get<std::string>() : name.dump(), 300);
}

}  // namespace

std::string bars_html(const Json& chart) {
  const std::string title = page_text(chart.value("title", "Chart"), 200);
  Json data = {{"kind", "bars"},
               {"title", title},
               {"unit", page_text(chart.value("unit", ""), 60)},
               {"program", version_line()},
               {"made", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))},
               {"series", Json::array()},
               {"bars", Json::array()}};
  for (const Json& name : chart.at("series")) data["series"].push_back(shown(name));
  for (const Json& bar : chart.at("bars")) {
    Json row = Json::array();
    for (std::size_t i = 0; i < bar.size(); ++i) {
      if (i == 0) {
        row.push_back(shown(bar[i]));
      } else {
        row.push_back(bar[i]);
      }
    }
    data["bars"].push_back(std::move(row));
  }
  return html_page(title, data);
}

}  // namespace mw
