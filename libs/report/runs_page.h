// The report of runs and sweeps as a page: who is fastest and right, losses, memory, bytes,
// timelines, the measured beside the predicted, and what did not end well.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

struct ReportInput {
  std::vector<std::filesystem::path> paths;  // these two: see find_report_runs()
  std::vector<std::string> of_run;
  std::string title;     // empty: the sweep's name, or that of the first path
  std::string baseline;  // a mix, value, or cell that the others are compared with; empty: the
                         // sweep's own, or none
  std::string watch;     // of a page that is served: what tells it from a later one; empty: a file
};

struct Report {
  std::string html;
  // { cells, status: { done = n, … }, fastest: { name, tokens_per_second, delta } or null, text }:
  // delta is null without a baseline; `text` says it in a sentence.
  Json summary;
};
// Throws Error: see find_report_runs(), html_page().
Report make_report(const ReportInput& input);
// Writes it as write_output() does; returns the summary with `file`.
Json write_report(const std::string& asked_by, const std::string& file, const ReportInput& input);

}  // namespace mw
