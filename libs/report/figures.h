// Figures and tables for papers: collects their data as JSON, which Python draws
// (python/src/meshwright_figures).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// The data of the figures: { rows: [one for each group of group_cells()], works: [{ key = value }],
// axes: [key], timeline }. A row's `work` is an index into `works`; unknown facts are left out.
// `paths`, `of_run` and errors: see find_report_runs().
Json figure_data(const std::vector<std::filesystem::path>& paths,
                 const std::vector<std::string>& of_run);

// Lets Python draw the figures of `request`, and returns its answer: { figures: [{ name, title,
// files, left_out }], not_drawn: [{ name, why }], fonts }. Throws Error if there is no Python, if
// it lacks a package, or if its answer is an error.
Json draw_figures(const Json& request);

}  // namespace mw
