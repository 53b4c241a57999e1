// Pages for people: one HTML file that holds all it needs and asks nothing of a network. The
// template, its style and its scripts lie in libs/report/page, Chart.js beside them.
#pragma once

#include <string>
#include <string_view>

#include "meshwright/json.h"

namespace mw {

// What each page's data begin with: its kind, its title, the program and the time.
Json page_data(const std::string& kind, const std::string& title);

// `data` is what the page shows; its `kind` says how: "runs", "plans", "searches" or "bars". Its
// texts end up as text, never as markup. With `watch`, what `/stamp` said when it was made, the
// page asks there for news (page/watch.js). Throws Error (environment) if a part of the page is not
// installed.
std::string html_page(const std::string& title, const Json& data);

// A number as a page has it: six digits, which is what it shows; null if it is not finite.
Json page_number(double value);
// At most `most` characters of a text, and how many there are if it has more.
std::string page_text(const std::string& text, std::size_t most = 2000);
// The same of a JSON value; a string stands without its quotes.
std::string page_value(const Json& value, std::size_t most = 300);

// `chart`: { title, unit, series: [name], bars: [[name, number for each of the series…]] }.
std::string bars_html(const Json& chart);

// The text as an element or a quoted attribute has it; control characters are left out but for line
// breaks and tabs, as XML knows no other.
std::string escaped(std::string_view text);

}  // namespace mw
