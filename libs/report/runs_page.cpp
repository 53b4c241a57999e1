// Makes the page of runs: reads them, groups them, and shrinks what does not fit.
#include "report/runs_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "report/cells.h"
#include "report/groups.h"
#include "report/page.h"
#include "report/runs_data.h"

namespace mw {
namespace {

constexpr std::size_t most_bytes = 3'000'000;  // of a page

std::string title_of(const ReportInput& input, const ReportRuns& runs) {
  if (!input.title.empty()) return input.title;
  if (!runs.name.empty()) return runs.name;
  if (runs.cells.size() == 1) return runs.cells.front().name;
  return fmt::format("{} in {}", plural(static_cast<std::int64_t>(runs.cells.size()), "run"),
                     input.paths.front().string());
}

}  // namespace

Report make_report(const ReportInput& input) {
  ReportRuns runs = find_report_runs(input.paths);
  if (!input.baseline.empty()) runs.baseline = input.baseline;
  const ReportGroups found = group_cells(runs);
  if (!input.baseline.empty() && std::all_of(found.groups.begin(), found.groups.end(),
                                             [](const ReportGroup& g) { return g.baseline < 0; })) {
    std::vector<std::string> names;
    for (const ReportGroup& g : found.groups) names.push_back(g.name);
    const std::string near = did_you_mean(input.baseline, names);
    if (names.size() > 12) names.resize(12);
    throw Error(Stage::options, "usage.value", "",
                fmt::format("--baseline {}: no mix or cell is called that", input.baseline),
                near.empty() ? "there are: " + join(names) : near);
  }
  const std::string title = page_text(title_of(input, runs), 120);
  Report report;
  Json data;
  for (double share = 1; report.html.empty() || report.html.size() >= most_bytes; share /= 2) {
    data = runs_data(runs, found, title, share);
    report.html = html_page(title, data);
    if (share < 1e-3) break;
  }
  report.summary = {{"cells", runs.cells.size()}, {"status", data["counts"]}, {"fastest", nullptr}};
  if (found.fastest >= 0) {
    const ReportGroup& best = found.groups[static_cast<std::size_t>(found.fastest)];
    report.summary["fastest"] = {{"name", best.name},
                                 {"tokens_per_second", best.speed()},
                                 {"predicted", found.predicted},
                                 {"delta", nullptr}};
    if (std::isfinite(best.delta)) report.summary["fastest"]["delta"] = best.delta;
  }
  report.summary["text"] = found.headline;
  return report;
}

Json write_report(const std::string& asked_by, const std::string& file, const ReportInput& input) {
  Report report = make_report(input);
  write_page(asked_by, file, report.html);
  report.summary["file"] = file;
  return report.summary;
}

}  // namespace mw
