// `meshwright report`: runs and sweeps as one HTML page.
#include <fmt/format.h>

#include "app/commands.h"
#include "report/runs_page.h"

namespace mw {

int show_report(const ReportArguments& arguments, Output& output) {
  if (arguments.file.empty()) {
    throw Error(Stage::options, "usage.missing", "", "report: no file to write is named",
                "-o report.html");
  }
  ReportInput input;
  input.paths.assign(arguments.runs.begin(), arguments.runs.end());
  input.title = arguments.title;
  input.baseline = arguments.baseline;
  Json result = {{"kind", "report"}};
  result.update(write_report("-o", arguments.file, input));
  if (!output.json()) {
    std::string counts;
    for (const auto& [status, count] : result["status"].items()) {
      counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count.get<int>(), status);
    }
    output.text(fmt::format("{}\n  {}\n  written: {}", result["text"].get<std::string>(), counts,
                            arguments.file));
  }
  output.result(result);
  return 0;
}

}  // namespace mw
