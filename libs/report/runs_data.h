// What the page of runs holds, as JSON, within a size that a browser likes.
#pragma once

#include <string>

#include "meshwright/json.h"
#include "report/cells.h"
#include "report/groups.h"

namespace mw {

// `share`: of what a page has room for, 1 or less: fewer groups, cells, points, bars, each said in
// its notes. The fastest groups, the baselines and what did not end well are kept longest.
Json runs_data(const ReportRuns& runs, const ReportGroups& found, const std::string& title,
               double share);

}  // namespace mw
