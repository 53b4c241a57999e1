// `search --html`: what a search planned whole as a page, time against memory.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// `results` are those of mw.search, in the order of the script's searches.
std::string searches_html(const std::string& script, const std::vector<Json>& results);

}  // namespace mw
