// The options of `meshwright runs`.
#include "app/command_line.h"

namespace mw {
namespace {

CLI::App* add_reader(CLI::App& runs, Arguments& arguments, const char* name, const char* about,
                     const char* example) {
  CLI::App* command = runs.add_subcommand(name, about);
  command->footer(std::string("Example: meshwright runs ") + name + " " + example);
  (void)arguments;
  return command;
}

CLI::Option* add_files(CLI::App* command, RunsArguments& a) {
  return command->add_option("FILE", a.files,
                             "a run file, the folder of a run or of a sweep, or a folder of these");
}

}  // namespace

void add_runs_commands(CLI::App& app, Arguments& arguments,
                       std::map<std::string, Command>& commands) {
  RunsArguments& a = arguments.runs;
  CLI::App* runs =
      app.add_subcommand("runs", "runs that were, and are: list, show, compare, export, tail");
  runs->require_subcommand(1);
  const auto json = [&](CLI::App* command) {
    command->add_flag("--json", arguments.json,
                      "one JSON object a line on stdout; people's text on stderr");
  };

  CLI::App* list = add_reader(*runs, arguments, "list", "what became of each run, a line each",
                              "runs --where 'loss < 2.5 and status == \"done\"' --sort loss");
  add_files(list, a)->option_text("FILE … (default: runs)");
  list->add_option("--where", a.where,
                   "a condition in Lua over a run's fields: name, mix, status, loss, "
                   "tokens_per_second, peak_bytes, values, experiment, …")
      ->type_name("CONDITION");
  list->add_option("--sort", a.sort, "by a field: loss, created, experiment.optimizer.lr")
      ->type_name("FIELD");
  list->add_flag("--reverse", a.reverse, "the largest, or the latest, first");
  json(list);
  commands["runs list"] = [](const Arguments& given, Output& o) {
    return list_runs(given.runs, o);
  };

  CLI::App* show = add_reader(*runs, arguments, "show",
                              "one run: its experiment, machine, plan, result, memory, bytes and "
                              "events",
                              "runs/quickstart.h5");
  add_files(show, a)->required()->expected(1);
  json(show);
  commands["runs show"] = [](const Arguments& given, Output& o) { return show_run(given.runs, o); };

  CLI::App* compare = add_reader(*runs, arguments, "compare",
                                 "in what experiments differ, and their results beside each other",
                                 "runs/one.h5 runs/other.h5");
  add_files(compare, a)->required();
  compare
      ->add_option("--baseline", a.baseline,
                   "the run that the others are compared with: its name or its file (default: the "
                   "first)")
      ->type_name("RUN");
  json(compare);
  commands["runs compare"] = [](const Arguments& given, Output& o) {
    return compare_runs(given.runs, o);
  };

  CLI::App* exports =
      add_reader(*runs, arguments, "export",
                 "runs as one table for other programs, CSV or a JSON object a line",
                 "--csv runs/mixes --table summary -o mixes.csv");
  add_files(exports, a)->required();
  CLI::Option* csv = exports->add_flag("--csv", a.csv, "comma-separated, text quoted (default)");
  exports->add_flag("--jsonl", a.jsonl, "a JSON object a line")->excludes(csv);
  exports
      ->add_option("--table", a.table,
                   "steps: a row a step; memory: a row for each rank and category; communication: "
                   "each step, rank, axis and op; summary: a row a run")
      ->check(CLI::IsMember({"steps", "memory", "communication", "summary"}))
      ->capture_default_str();
  exports->add_option("-o,--output", a.out, "write to a file instead of stdout")->type_name("FILE");
  commands["runs export"] = [](const Arguments& given, Output& o) {
    return export_runs(given.runs, o);
  };

  CLI::App* tail = add_reader(*runs, arguments, "tail",
                              "a run's last steps, and with -f those that come", "-f runs/x.h5");
  add_files(tail, a)->required()->expected(1);
  tail->add_flag("-f,--follow", a.follow, "go on until the run ends");
  tail->add_option("-n,--steps", a.last, "how many steps (default 10)")
      ->check(CLI::Range(0, 1 << 30));
  json(tail);
  commands["runs tail"] = [](const Arguments& given, Output& o) { return tail_run(given.runs, o); };
}

}  // namespace mw
