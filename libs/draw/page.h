// HTML pages, each one file that needs no network. The template, its style and its scripts lie in
// libs/draw/page, Chart.js beside them.
#pragma once

#include <string>
#include <string_view>

#include "meshwright/json.h"

namespace mw {

// The common part of all pages' data: kind, title, program version and time.
Json page_data(const std::string& kind, const std::string& title);

// Makes a page that shows `data`, whose `kind` is "runs", "plans", "searches" or "bars". Texts of
// the data are shown as text, never as markup. If the data have `watch` (the stamp of the data),
// the page polls `/stamp` for news (page/watch.js). Throws Error (environment) if a part of the
// page is not installed.
std::string html_page(const std::string& title, const Json& data);

// A number for a page, rounded to six digits; null if it is not finite.
Json page_number(double value);
// The first `most` characters of a text; a longer text gets its number of characters at the end.
std::string page_text(const std::string& text, std::size_t most = 2000);
// As page_text(), for a JSON value; a string is written without its quotes.
std::string page_value(const Json& value, std::size_t most = 300);

// A page with a bar chart. `chart`: { title, unit, series: [name], bars: [[name, number for each of
// the series…]] }.
std::string bars_html(const Json& chart);

// Escapes a text for an XML element or a quoted attribute. Control characters other than line
// breaks and tabs are removed, since XML does not allow them.
std::string escaped(std::string_view text);

}  // namespace mw
