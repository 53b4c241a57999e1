// Figures and tables for papers: what there is to draw as JSON, and Python, which draws it
// (python/src/meshwright_figures).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// What there is to draw: { rows: [one for each group of group_cells()], works: [{ key = value }],
// axes: [key], timeline }. A row's `work` is an index into works; what is not known of it is
// missing. `paths` and `of_run` are those of find_report_runs(), whose errors it throws.
Json figure_data(const std::vector<std::filesystem::path>& paths,
                 const std::vector<std::string>& of_run);

// What Python answers to `request`: { figures: [{ name, title, files, left_out }], not_drawn:
// [{ name, why }], fonts }. Throws Error if there is no Python, if it lacks a package, and for what
// the answer calls wrong.
Json draw_figures(const Json& request);

}  // namespace mw
