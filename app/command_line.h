// What the command line takes: its commands, their options, and what each of them calls.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <map>
#include <string>

#include "app/commands.h"

namespace mw {

struct Arguments : ScriptArguments {
  std::string plugin, of_model, cell;
  NewPluginArguments fresh;
  bool json = false, quiet = false;
  ScheduleArguments schedule;
  TraceArguments trace;
  CheckpointsArguments checkpoints;
  ExportArguments exported;
  ReportArguments report;
  RunsArguments runs;
  CalibrateArguments calibrate;
};

using Command = std::function<int(const Arguments&, Output&)>;

// Adds all commands to the parser; they read their options into `arguments`. Returns them by the
// path of words that calls them ("plugins list").
std::map<std::string, Command> add_commands(CLI::App& app, Arguments& arguments);

// The registry over the plugin path that was given; and the options that most commands share: the
// plugin path, and --json.
PluginRegistry registry_of(const Arguments& arguments);
void add_common(CLI::App* command, Arguments& arguments, bool json = true);

// --max-restarts and what goes with it; and the command in a process of its own, for these.
void add_restarts(CLI::App* run, Arguments& arguments);
int run_restarting(const Arguments& arguments, Output& output);

// schedule NAME.
void add_schedule_command(CLI::App& app, Arguments& arguments,
                          std::map<std::string, Command>& commands);
// checkpoints PATH.
void add_checkpoints_command(CLI::App& app, Arguments& arguments,
                             std::map<std::string, Command>& commands);
// export.
void add_export_command(CLI::App& app, Arguments& arguments,
                        std::map<std::string, Command>& commands);

// runs list, show, compare, export, tail.
void add_runs_commands(CLI::App& app, Arguments& arguments,
                       std::map<std::string, Command>& commands);

// --cluster, --nodes and --stack of a command that plans scripts.
void add_priced_for(CLI::App* command, Arguments& arguments);
// calibrate.
void add_calibrate_command(CLI::App& app, Arguments& arguments,
                           std::map<std::string, Command>& commands);
// bench prediction.
void add_bench_command(CLI::App& app, Arguments& arguments,
                       std::map<std::string, Command>& commands);

}  // namespace mw
