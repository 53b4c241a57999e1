// `meshwright report`: runs and sweeps as one HTML page, and figures for papers.
#include <fmt/format.h>

#include "app/command.h"
#include "app/report_watch.h"
#include "common/process.h"
#include "meshwright/engine/text.h"
#include "report/figures.h"
#include "report/runs_page.h"
#include "script/read_experiment.h"

namespace mw {
namespace {

struct ReportArguments : Arguments {
  std::vector<std::string> runs;      // run files, run folders, sweep folders, folders of these
  std::string file, title, baseline;  // see ReportInput
  std::string figures;                // the folder to write figures to; empty: none
  FigureStyle style;
  bool watch = false;
  int port = 0;  // 0: one that is free
};

// The command line that makes the same figures again.
std::string command_text(const ReportArguments& arguments) {
  std::string text = "meshwright report";
  for (const std::string& run : arguments.runs) text += " " + shell_word(run);
  text += " --figures " + shell_word(arguments.figures);
  if (arguments.style.columns != 1) text += fmt::format(" --columns {}", arguments.style.columns);
  if (!arguments.style.font.empty()) text += " --font " + shell_word(arguments.style.font);
  return text;
}

std::string figures_text(const Json& written, const ReportArguments& arguments) {
  std::string text = fmt::format("figures in {}, {} inches wide:\n", arguments.figures,
                                 arguments.style.columns == 2 ? "7" : "3.3");
  for (const Json& figure : written["figures"]) {
    std::string endings;
    for (const Json& file : figure["files"])
      endings += " " + std::filesystem::path(file.get<std::string>()).extension().string();
    text += fmt::format("  {:<20}{:<24}{}\n", figure["name"].get<std::string>(), endings,
                        figure["title"].get<std::string>());
    if (const auto left_out = figure["left_out"].get<std::string>(); !left_out.empty())
      text += fmt::format("  {:<20}it shows {}\n", "", left_out);
  }
  for (const Json& one : written["not_drawn"])
    text += fmt::format("  {:<20}not drawn: {}\n", one["name"].get<std::string>(),
                        one["why"].get<std::string>());
  if (written["no_pdf"].is_string())
    return text + "no PDF was written: " + written["no_pdf"].get<std::string>();
  return text + "fonts in the PDFs: " + join(written["fonts"].get<std::vector<std::string>>());
}

void write_paper(const ReportArguments& arguments, Output& output) {
  FigureStyle style = arguments.style;
  style.made_by = command_text(arguments);
  const std::vector<std::filesystem::path> inputs(arguments.runs.begin(), arguments.runs.end());
  Json result = {{"kind", "figures"}, {"folder", arguments.figures}};
  result.update(write_figures(figures_of(inputs, keys_of_run()), arguments.figures, style));
  output.text(figures_text(result, arguments));
  output.result(result);
}

ReportInput input_of(const ReportArguments& arguments) {
  ReportInput input;
  input.paths.assign(arguments.runs.begin(), arguments.runs.end());
  input.of_run = keys_of_run();
  input.title = arguments.title;
  input.baseline = arguments.baseline;
  return input;
}

void write_runs_page(const ReportArguments& arguments, Output& output) {
  const ReportInput input = input_of(arguments);
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
}

int show_report(const ReportArguments& arguments, Output& output) {
  if (arguments.file.empty() && arguments.figures.empty() && !arguments.watch) {
    throw Error(Stage::options, "usage.missing", "", "report: no file to write is named",
                "-o report.html, --figures FOLDER, or --watch");
  }
  if (!arguments.figures.empty()) write_paper(arguments, output);
  if (!arguments.file.empty()) write_runs_page(arguments, output);
  if (!arguments.watch) return 0;
  serve_report(input_of(arguments), arguments.port, output);
  return exit_interrupted;
}

const CommandOf<ReportArguments> report_command{
    {"report", 140,
     "runs and sweeps as one HTML page that needs no network: losses, speed, memory, "
     "bytes, timelines, measured beside predicted; or as figures and tables for a paper"},
    [](CLI::App& command, ReportArguments& a) {
      command
          .add_option("FILE", a.runs,
                      "run files, run folders, or a sweep's folder (runs/NAME); a folder of these; "
                      "for --figures also what plan or search wrote with --json (*.json, *.jsonl)")
          ->required();
      command.add_option("-o,--output", a.file, "the page to write")->type_name("FILE");
      command.add_option("--baseline", a.baseline,
                         "what the others are compared with: a mix, a cell, or a value of an axis");
      command.add_option("--title", a.title, "the page's title");
      auto* figures =
          command
              .add_option("--figures", a.figures,
                          "write figures for a paper there (SVG, PDF), their numbers (CSV) and "
                          "LaTeX tables")
              ->type_name("FOLDER");
      command
          .add_option("--columns", a.style.columns,
                      "the figures' width, in columns of a paper with two: 1 is 3.3 inches, 2 is 7")
          ->check(CLI::IsMember({1, 2}))
          ->type_name("N")
          ->needs(figures);
      command.add_option("--font", a.style.font, "the figures' font: a family's name")
          ->needs(figures);
      auto* watch = command.add_flag(
          "--watch", a.watch,
          "serve the page to a browser on this machine, anew while runs go on; Ctrl-C ends it");
      command.add_option("--port", a.port, "of --watch; one that is free if left out")
          ->check(CLI::Range(1, 65535))
          ->type_name("N")
          ->needs(watch);
      command.footer(
          "Example: meshwright report runs/mixes -o report.html\n"
          "         meshwright report runs/mixes --watch\n"
          "         meshwright report runs/mixes --figures paper/figures --columns 2");
      add_json(command, a);
    },
    show_report};

}  // namespace
}  // namespace mw
