// The commands and options of the program, and what each command calls.
#include "app/command_line.h"

#include "app/model_text.h"
#include "meshwright/engine/module.h"
#include "meshwright/engine/version.h"

namespace mw {

PluginRegistry registry_of(const Arguments& arguments) {
  return PluginRegistry(PluginRegistry::search_path(arguments.plugin_path));
}

static void add_json(CLI::App* command, Arguments& arguments) {
  command->add_flag("--json", arguments.json,
                    "one JSON object a line on stdout; people's text on stderr");
}

void add_common(CLI::App* command, Arguments& arguments, bool json) {
  command
      ->add_option("--plugin-path", arguments.plugin_path,
                   "a folder of plugins, searched first; may be repeated")
      ->allow_extra_args(false)
      ->type_name("FOLDER");
  if (json) add_json(command, arguments);
}

namespace {

void add_settings(CLI::App* command, Arguments& arguments) {
  command
      ->add_option(
          "--set", arguments.settings,
          "change a key of the experiment: steps=5, model.layers=2, plan[2].ways=4; the value is a "
          "number, a word or a Lua expression; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
}

void add_quiet(CLI::App* command, Arguments& arguments) {
  command->add_flag("--quiet", arguments.quiet,
                    "no text but errors and what the script prints; --json's lines stay");
}

CLI::App* add_script_command(CLI::App& app, Arguments& arguments, const std::string& name,
                             const std::string& about, const std::string& example) {
  CLI::App* command = app.add_subcommand(name, about);
  command->add_option("SCRIPT", arguments.script, "an experiment script (Lua); - is standard input")
      ->required();
  add_settings(command, arguments);
  add_quiet(command, arguments);
  command->footer(
      "What stands after -- is the script's: arg[1], arg[2], ...\nExample: meshwright " + name +
      " " + example);
  return command;
}

void add_processes(CLI::App* command, ProcessArguments& arguments) {
  command
      ->add_option("--processes", arguments.processes,
                   "start so many processes on this machine and share the ranks among them; "
                   "without it, those that mpirun, srun or torchrun started")
      ->check(CLI::Range(1, 1 << 16))
      ->type_name("N");
  command
      ->add_option("--communicator", arguments.communicator,
                   "the plugin that connects processes (mpi, nccl), if it is not to be the "
                   "launcher's own; threads: each process runs by itself")
      ->type_name("NAME");
}

void add_trace_command(CLI::App& app, Arguments& arguments) {
  CLI::App* command = app.add_subcommand(
      "trace", "a run file's step as a Chrome trace or a drawing, measured beside predicted");
  TraceArguments& a = arguments.trace;
  command->add_option("FILE", a.run, "a run file: what a script's log names")->required();
  command->add_option("-o,--output", a.trace, "write a Chrome trace (Perfetto opens it)")
      ->type_name("FILE");
  command->add_option("--svg", a.svg, "write a drawing")->type_name("FILE");
  command
      ->add_option("--step", a.step,
                   "which step; if not given, the one of median duration after the warm-up")
      ->check(CLI::Range(-(std::int64_t{1} << 60), std::int64_t{1} << 60).description(""))
      ->type_name("N");
  command->add_flag("--predicted", a.predicted, "the predicted timeline alone");
  command->footer("Example: meshwright trace runs/pipeline.h5 -o trace.json --svg step.svg");
  add_json(command, arguments);
}

// Options of sweep:go that are handed on as they are: its own check reads them.
void add_go_option(CLI::App* command, Arguments& arguments, const std::string& key,
                   const std::string& about, const std::string& type) {
  command
      ->add_option_function<std::string>(
          "--" + key,
          [&arguments, key](const std::string& text) {
            Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
            arguments.go[key] = value.is_number() && key != "shard" ? value : Json(text);
          },
          about)
      ->type_name(type);
}

void add_sweep_commands(CLI::App& app, Arguments& arguments,
                        std::map<std::string, Command>& commands) {
  CLI::App* sweep = add_script_command(
      app, arguments, "sweep",
      "run a script's sweeps: each cell in a process of its own; done ones are not run again",
      "scripts/ablations/mixes.lua --dry");
  add_go_option(sweep, arguments, "workers",
                "cells that run at a time; as many as memory and cores take if left out", "N");
  add_go_option(sweep, arguments, "retry", "run these again: failed, or all", "WHICH");
  add_go_option(sweep, arguments, "shard", "run every n-th cell from the i-th on", "I/N");
  add_go_option(sweep, arguments, "time", "what a cell may take before it is ended", "SECONDS");
  add_go_option(sweep, arguments, "memory", "what a cell's process may allocate: 8GiB", "BYTES");
  add_go_option(sweep, arguments, "print", "sbatch: print a job-array script for Slurm", "WHAT");
  sweep
      ->add_option_function<std::string>(
          "--only",
          [&arguments](const std::string& text) {
            if (!arguments.go.contains("only")) arguments.go["only"] = Json::array();
            arguments.go["only"].push_back(text);
          },
          "the cells that have this in their name, or match with * and ?; may be repeated")
      ->allow_extra_args(false)
      ->type_name("PATTERN");
  const auto flag = [&](const char* key, const char* about) {
    sweep->add_flag_callback(
        std::string("--") + key, [&arguments, key] { arguments.go[key] = true; }, about);
  };
  flag("dry", "list the cells, with what is predicted and what would run");
  flag("predict", "predict the cells, in this process, and run none");
  sweep->add_flag(
      "--force", arguments.force,
      "start although the ranks are predicted to need more memory than this machine has");
  add_common(sweep, arguments);
  commands["sweep"] = run_sweeps;

  CLI::App* cell = app.add_subcommand("cell", "one cell, for the processes of sweep")->group("");
  cell->add_option("FILE", arguments.cell)->required();
  commands["cell"] = [](const Arguments& a, Output& o) { return run_sweep_cell(a.cell, o); };
}

void add_report_command(CLI::App& app, Arguments& arguments) {
  CLI::App* command = app.add_subcommand(
      "report",
      "runs and sweeps as one HTML page that needs no network: losses, speed, memory, "
      "bytes, timelines, measured beside predicted");
  ReportArguments& a = arguments.report;
  command
      ->add_option("FILE", a.runs,
                   "run files, run folders, or a sweep's folder (runs/NAME); a folder of these")
      ->required();
  command->add_option("-o,--output", a.file, "the page to write")->type_name("FILE");
  command->add_option("--baseline", a.baseline,
                      "what the others are compared with: a mix, a cell, or a value of an axis");
  command->add_option("--title", a.title, "the page's title");
  command->footer("Example: meshwright report runs/mixes -o report.html");
  add_json(command, arguments);
}

// plugins new and plugins test.
void add_kit_commands(CLI::App& plugins, Arguments& arguments,
                      std::map<std::string, Command>& commands) {
  CLI::App* fresh = plugins.add_subcommand(
      "new", "write the folder of a plugin that builds and passes its test at once");
  fresh->add_option("NAME", arguments.fresh.name, "the plugin's name, and the folder's")
      ->required();
  fresh->add_option("--kind", arguments.fresh.kind, kinds_there_are())
      ->required()
      ->type_name("KIND");
  fresh->add_flag("--lua", arguments.fresh.lua, "a script instead of C++");
  fresh->footer("Example: meshwright plugins new my_tp --kind strategy");
  add_common(fresh, arguments);
  commands["plugins new"] = [](const Arguments& a, Output& o) {
    auto found = registry_of(a);
    return new_plugin(a.fresh, found, o);
  };

  CLI::App* test = plugins.add_subcommand(
      "test", "try what a plugin brings, alone and beside the forms, and report each check");
  test->add_option("NAME", arguments.plugin,
                   "a plugin's name, the path of its file, or a script (FILE.lua), whose every "
                   "mw.train is tried")
      ->required();
  add_settings(test, arguments);
  test->footer("Example: meshwright plugins test build/my_tp.so");
  add_common(test, arguments);
  commands["plugins test"] = [](const Arguments& a, Output& o) {
    return test_plugin(a, a.plugin, o);
  };
}

// A script's models are those of its plans.
int show_model_of(const Arguments& arguments, PluginRegistry& plugins, Output& output) {
  const std::string& name = arguments.of_model;
  if (!name.ends_with(".lua") && name != "-")
    return show_model(plugins, name, arguments.settings, output);
  ScriptArguments script = arguments;
  script.script = name;
  script.model = true;
  return run_script(script, "plan", output);
}

}  // namespace

std::map<std::string, Command> add_commands(CLI::App& app, Arguments& arguments) {
  std::map<std::string, Command> commands;
  const auto scripted = [&](const char* name, const char* train_as, const char* about,
                            const char* example) {
    add_common(add_script_command(app, arguments, name, about, example), arguments);
    commands[name] = [train_as](const Arguments& a, Output& o) {
      return a.restarts.wanted() ? run_restarting(a, o) : run_script(a, train_as, o);
    };
  };
  scripted("run", "train", "run a script: train as it says",
           "scripts/quickstart.lua --set steps=20");
  add_restarts(app.get_subcommand("run"), arguments);
  scripted("plan", "plan",
           "run a script with every mw.train turned into mw.plan: resolve and predict, no training",
           "scripts/quickstart.lua --set plan[2].ways=2");
  app.get_subcommand("plan")->add_flag(
      "--program", arguments.program,
      "list the program too: every instruction that the engine runs and the simulator prices");
  app.get_subcommand("plan")->add_flag(
      "--placements", arguments.placements,
      "list the parameters too: who holds what, by placement and shape on each class of ranks");
  app.get_subcommand("plan")
      ->add_option("--html", arguments.html,
                   "write a page too: the mesh and who holds what, the timeline, memory over time")
      ->type_name("FILE");
  app.get_subcommand("plan")
      ->add_option("--trace", arguments.plan_trace,
                   "write a Chrome trace too: the predicted step, with ops, transfers and memory")
      ->type_name("FILE");
  app.get_subcommand("plan")->add_flag(
      "--full", arguments.full,
      "show each plan whole; without it a script's plans behind the first have a line each where "
      "there are more than two");
  app.get_subcommand("plan")->add_flag(
      "--must-fit", arguments.must_fit,
      "end with 3, as where a plan is refused, if one does not fit its memory or nobody knows");
  add_priced_for(app.get_subcommand("plan"), arguments);
  scripted(
      "search", "search",
      "run a script with every mw.train turned into mw.search: the best plans for its model on "
      "a cluster, and why",
      "scripts/search.lua --set batch=512");
  add_priced_for(app.get_subcommand("search"), arguments);
  scripted(
      "verify", "verify",
      "run a script with every mw.train turned into mw.verify: compare with one rank in float64",
      "scripts/quickstart.lua");
  scripted("prove", "prove",
           "run a script with every mw.train turned into mw.prove, and what it plans proved: "
           "follow each instruction of its "
           "programs, at full size, and refuse (exit 3) what one rank would not compute",
           "scripts/quickstart.lua");
  app.get_subcommand("prove")->add_flag(
      "--strict", arguments.strict,
      "suppose a backend of one stream, whose collectives begin when all ranks have come to them");
  scripted("logits", "logits",
           "run a script with every mw.train turned into the forward part on its first batch: "
           "tokens and logits into a file, to hold them to another program's",
           "scripts/quickstart.lua -o runs/logits.safetensors");
  app.get_subcommand("logits")
      ->add_option("-o", arguments.logits, "the file (safetensors)")
      ->type_name("FILE")
      ->required();

  add_sweep_commands(app, arguments, commands);

  CLI::App* compare = app.add_subcommand(
      "compare",
      "run two scripts, or one with two mw.train, and compare the two experiments: where they part "
      "first, and whether rounding explains it");
  compare->add_option("SCRIPT", arguments.scripts, "experiment scripts (Lua)")
      ->required()
      ->expected(1, 2);
  add_settings(compare, arguments);
  add_quiet(compare, arguments);
  compare->footer("Example: meshwright compare scripts/quickstart.lua scripts/mine.lua");
  for (const char* name : {"run", "verify", "compare"}) {
    add_processes(app.get_subcommand(name), arguments.processes);
    app.get_subcommand(name)->add_flag(
        "--force", arguments.force,
        "start although the ranks are predicted to need more memory than this machine has");
  }
  add_common(compare, arguments);
  commands["compare"] = run_compared;

  CLI::App* plugins =
      app.add_subcommand("plugins", "what can be composed: list, show; and one's own: new, test");
  plugins->require_subcommand(1);
  CLI::App* list = plugins->add_subcommand(
      "list", "all that is built in and on the path, by kind; broken plugins with their reasons");
  add_common(list, arguments);
  CLI::App* show = plugins->add_subcommand("show", "options with types, ranges and defaults");
  CLI::Option* named =
      show->add_option("NAME", arguments.plugin,
                       "a plugin, the path of its file, or what is built in: llama, adamw");
  CLI::Option* model = show->add_option(
      "--model", arguments.of_model,
      "a model by name, or that of a script: its dims, ops and parameters, for rules about them");
  model->type_name("MODEL|SCRIPT")->excludes(named);
  add_settings(show, arguments);
  show->footer(
      "Examples: meshwright plugins show NAME, of those that plugins list names\n"
      "          meshwright plugins show --model llama");
  add_common(show, arguments);
  commands["plugins list"] = [](const Arguments& a, Output& o) {
    auto found = registry_of(a);
    return list_plugins(found, o);
  };
  commands["plugins show"] = [](const Arguments& a, Output& o) {
    auto found = registry_of(a);
    if (!a.of_model.empty()) return show_model_of(a, found, o);
    if (!a.plugin.empty()) return show_plugin(found, a.plugin, o);
    throw Error(
        Stage::script, "usage.missing", "", "plugins show: NAME is missing",
        "see meshwright plugins show --help; for example plugins show llama, or --model llama");
  };
  add_kit_commands(*plugins, arguments, commands);

  add_schedule_command(app, arguments, commands);
  add_checkpoints_command(app, arguments, commands);
  add_export_command(app, arguments, commands);
  add_trace_command(app, arguments);
  commands["trace"] = [](const Arguments& a, Output& o) { return show_trace(a.trace, o); };
  add_report_command(app, arguments);
  commands["report"] = [](const Arguments& a, Output& o) { return show_report(a.report, o); };

  add_runs_commands(app, arguments, commands);
  add_bench_command(app, arguments, commands);
  add_calibrate_command(app, arguments, commands);

  add_common(
      app.add_subcommand("doctor", "what this machine and installation have, and what they lack"),
      arguments);
  commands["doctor"] = [](const Arguments& a, Output& o) {
    auto found = registry_of(a);
    return doctor(found, o);
  };
  add_common(
      app.add_subcommand("lua-types", "print the type annotations of the Lua module, for editors"),
      arguments, false);
  commands["lua-types"] = [](const Arguments& a, Output& o) {
    auto found = registry_of(a);
    return print_lua_types(found, o);
  };
  add_common(app.add_subcommand("repl", "a Lua prompt with mw loaded"), arguments, false);
  commands["repl"] = run_repl;
  app.add_subcommand("version", "print the version");
  commands["version"] = [](const Arguments&, Output& o) {
    o.text(version_line());
    return 0;
  };
  return commands;
}

}  // namespace mw
