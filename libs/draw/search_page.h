// The page of searches (`search --html`): time against memory of the plans that were made in full.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// Makes the page. `results`: the results of mw.search, in the order of the script's searches.
std::string searches_html(const std::string& script, const std::vector<Json>& results);

}  // namespace mw
