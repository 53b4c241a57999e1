// `meshwright report`: runs and sweeps as one HTML page.
#include <fmt/format.h>

#include "app/command.h"
#include "report/runs_page.h"

namespace mw {
namespace {

struct ReportArguments : Arguments {
  std::vector<std::string> runs;      // run files, run folders, sweep folders, folders of these
  std::string file, title, baseline;  // see ReportInput
};

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

const CommandOf<ReportArguments> report_command{
    {"report", 140,
     "runs and sweeps as one HTML page that needs no network: losses, speed, memory, "
     "bytes, timelines, measured beside predicted"},
    [](CLI::App& command, ReportArguments& a) {
      command
          .add_option("FILE", a.runs,
                      "run files, run folders, or a sweep's folder (runs/NAME); a folder of these")
          ->required();
      command.add_option("-o,--output", a.file, "the page to write")->type_name("FILE");
      command.add_option("--baseline", a.baseline,
                         "what the others are compared with: a mix, a cell, or a value of an axis");
      command.add_option("--title", a.title, "the page's title");
      command.footer("Example: meshwright report runs/mixes -o report.html");
      add_json(command, a);
    },
    show_report};

}  // namespace
}  // namespace mw
