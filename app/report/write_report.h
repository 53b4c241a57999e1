// Writes the page of runs, for the command report and for sweeps.
#pragma once

#include <string>

#include "meshwright/json.h"
#include "report/runs_page.h"

namespace mw {

// Makes the page and writes it by write_output(); returns the summary, with `file`.
Json write_report(const std::string& asked_by, const std::string& file, const ReportInput& input);

}  // namespace mw
