// `meshwright report`: runs and sweeps as one HTML page, and figures for papers.
#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "app/command.h"
#include "app/report/report_watch.h"
#include "app/report/write_report.h"
#include "common/files.h"
#include "common/process.h"
#include "lua/script.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "report/figures.h"
#include "script/read_experiment.h"

namespace mw {

Json write_report(const std::string& asked_by, const std::string& file, const ReportInput& input) {
  Report report = make_report(input);
  write_output({asked_by, file, OutputKind::page}, report.html);
  report.summary["file"] = file;
  return report.summary;
}
namespace {

struct ReportArguments : Arguments {
  std::vector<std::string> runs;      // run files, run folders, sweep folders, folders of these
  std::string file, title, baseline;  // see ReportInput
  // How figures are drawn; see the options' help.
  std::string figures, font, where, columns;
  std::vector<std::string> rows, names;
  double width = 3.3;  // inches
  bool pgf = false;
  bool watch = false;
  int port = 0;  // 0: one that is free
};

// The command line that makes the same figures again.
std::string command_text(const ReportArguments& a) {
  std::string text = "meshwright report";
  for (const std::string& run : a.runs) text += " " + shell_word(run);
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) text += fmt::format(" {} {}", option, shell_word(value));
  };
  add("--figures", a.figures);
  if (a.width != ReportArguments().width) add("--width", fmt::format("{}", a.width));
  add("--font", a.font);
  add("--where", a.where);
  add("--rows", join(a.rows, ","));
  add("--columns", a.columns);
  for (const std::string& name : a.names) add("--names", name);
  return text + (a.pgf ? " --pgf" : "");
}

std::string figures_text(const Json& written, const ReportArguments& arguments) {
  std::string text =
      fmt::format("figures in {}, {} inches wide:\n", arguments.figures, arguments.width);
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
  return text + "fonts in the PDFs: " + join(written["fonts"].get<std::vector<std::string>>());
}

void keep_where(Json& data, const std::string& where) {
  const auto axes = data["axes"].get<std::vector<std::string>>();
  static const std::regex of_axis(R"(\bvalues\.([A-Za-z_]\w*))");
  for (std::sregex_iterator at(where.begin(), where.end(), of_axis), end; at != end; ++at) {
    const std::string key = (*at)[1];
    if (std::find(axes.begin(), axes.end(), key) != axes.end()) continue;
    const std::string near = did_you_mean(key, axes);
    throw Error(Stage::options, "where.field", "",
                fmt::format("--where {}: the mixes do not differ in {}", where, quote(key)),
                near.empty() ? "they differ in: " + join(axes) : near);
  }
  Predicate wanted("--where", where,
                   {"name", "verdict", "predicted", "runs", "ranks", "tokens_per_second",
                    "step_seconds", "peak_bytes", "mfu", "loss", "values"});
  Json kept = Json::array();
  for (Json& row : data["rows"])
    if (wanted(row) == Predicate::Answer::yes) kept.push_back(std::move(row));
  if (kept.empty()) {
    throw Error(Stage::options, "usage.value", "",
                fmt::format("--where {}: no mix meets it, of {}", where, data["rows"].size()),
                "report without --where shows all of them in summary.csv");
  }
  data["rows"] = std::move(kept);
}

void write_paper(const ReportArguments& arguments, Output& output) {
  Json request = figure_data({arguments.runs.begin(), arguments.runs.end()}, keys_of_run());
  if (!arguments.where.empty()) keep_where(request, arguments.where);
  request["asked"] = {{"folder", arguments.figures},  {"width", arguments.width},
                      {"font", arguments.font},       {"rows", arguments.rows},
                      {"columns", arguments.columns}, {"names", arguments.names},
                      {"pgf", arguments.pgf},         {"made_by", command_text(arguments)}};
  Json result = {{"kind", "figures"}, {"folder", arguments.figures}};
  result.update(draw_figures(request));
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
  check_outputs({{"-o", arguments.file, OutputKind::page}});
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
                      "what plan or search wrote with --json (*.json, *.jsonl)")
          ->required();
      command.add_option("-o,--output", a.file, "the page to write")->type_name("FILE");
      command.add_option("--baseline", a.baseline,
                         "what the others are compared with: a mix, a cell, or a value of an axis");
      command.add_option("--title", a.title, "the page's title");
      auto* figures =
          command
              .add_option("--figures", a.figures,
                          "write figures for a paper there (SVG, PDF), their numbers (CSV) and "
                          "LaTeX tables; Python draws them, with matplotlib")
              ->type_name("FOLDER");
      command
          .add_option("--width", a.width,
                      "the figures' width: 3.3 fits a column of a paper with two, 7 both")
          ->check(CLI::Range(2.0, 30.0))
          ->type_name("INCHES")
          ->needs(figures);
      command.add_option("--font", a.font, "the figures' font: a family's name")->needs(figures);
      command
          .add_option("--where", a.where,
                      "draw the mixes that meet a condition in Lua over name, verdict, predicted, "
                      "ranks, runs, tokens_per_second, step_seconds, peak_bytes, mfu, loss, values")
          ->type_name("CONDITION")
          ->needs(figures);
      command
          .add_option(
              "--rows", a.rows,
              "the keys that name and order the rows, with commas: axes of the sweep (plan, "
              "recompute), or a field of --where to order by; -KEY: the largest first")
          ->delimiter(',')
          ->type_name("KEYS")
          ->needs(figures);
      command
          .add_option(
              "--columns", a.columns,
              "the key whose values stand beside each other in each row, each in its colour")
          ->type_name("KEY")
          ->needs(figures);
      command
          .add_option("--names", a.names,
                      "what a mix, a value or an axis is called in the figures; may be given again")
          ->type_name("OLD=NEW")
          ->needs(figures);
      command.add_flag("--pgf", a.pgf, "write each figure as PGF too, for \\input; needs pdflatex")
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
          "         meshwright report runs/mixes --figures paper/figures --rows plan");
      add_json(command, a);
    },
    show_report};

}  // namespace
}  // namespace mw
