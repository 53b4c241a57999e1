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
  ReportArguments report;
  RunsArguments runs;
};

using Command = std::function<int(const Arguments&, Output&)>;

// Adds all commands to the parser; they read their options into `arguments`. Returns them by the
// path of words that calls them ("plugins list").
std::map<std::string, Command> add_commands(CLI::App& app, Arguments& arguments);

// runs list, show, compare, export, tail.
void add_runs_commands(CLI::App& app, Arguments& arguments,
                       std::map<std::string, Command>& commands);

}  // namespace mw
