// The report of runs and sweeps as a page: the fastest right mix, losses, memory, bytes and
// timelines, measured beside predicted, and the cells that failed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

struct ReportInput {
  std::vector<std::filesystem::path> paths;  // `paths` and `of_run`: see find_report_runs()
  std::vector<std::string> of_run;
  std::string title;  // empty: the sweep's name, or that of the first path
  // The mix, value or cell with which the others are compared; empty: the sweep's own, or none.
  std::string baseline;
  std::string watch;  // stamp of a page that is served, for news; empty: the page is a file
};

struct Report {
  std::string html;
  // { cells, status: { done = n, … }, fastest: { name, tokens_per_second, delta } or null, text }:
  // delta is null without a baseline; `text` says it in a sentence.
  Json summary;
};
// Makes the page. Throws Error: see find_report_runs(), html_page().
Report make_report(const ReportInput& input);

}  // namespace mw
