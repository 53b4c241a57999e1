// `mw.bar_chart`: a page of one bar chart with its numbers.
#pragma once

#include <string>

#include "meshwright/json.h"

namespace mw {

// `chart`: { title, unit, series: [name], bars: [[name, number for each of the series…]] }.
std::string bars_html(const Json& chart);

}  // namespace mw
