// What commands that run a script have in common.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/app_host.h"
#include "app/command.h"
#include "launch/restarts.h"
#include "lua/script.h"
#include "meshwright/json.h"

namespace mw {

struct ScriptArguments : Arguments {
  std::vector<std::string> scripts() const override { return {script}; }

  std::string script;                 // a path; "-": standard input
  HostOptions host;                   // how the script's verbs run
  std::string html, plan_trace;       // page and trace that `plan` writes; empty: none
  std::string braids_svg;             // drawing of braids that `plan` writes; empty: none
  Json go = Json::object();           // what the command line says of sweeps: keys of sweep:go
  std::string cluster, stack;         // what plans are priced for; empty: as the script says
  int nodes = 0;                      // nodes of the cluster; 0: as its description says
  std::vector<std::string> what_ifs;  // --what-if of `plan`: knobs and their values
  Restarts restarts;                  // --max-restarts of `run`
  std::string attempt;  // which start this is, given by run_with_restarts; empty: the only one
};

// Adds SCRIPT, the options that all such commands have, and a footer with an example.
void add_script(CLI::App& command, ScriptArguments& arguments, const std::string& example);
void add_force(CLI::App& command, ScriptArguments& arguments);

// Throws Error (script) where a script cannot be started several times, or where two things would
// start its processes. `asked_by`: the command or option that starts it again.
void check_starts_again(const std::string& asked_by, const std::string& script,
                        const std::string& launcher, const ProcessArguments& processes);

// Runs a script with each mw.train as the verb `train_as`. Throws Error (script) if a result was
// asked for and the script gives none.
int run_script(const ScriptArguments& arguments, const std::string& train_as, Output& output);

// Runs a script for its sweeps: all of them, or one cell in a process of its own.
struct SweepRun {
  std::optional<CellOrder> cell;
  std::function<ScriptText()> text;  // gives the script's text, which its file may no longer have
};
int run_sweeping(const ScriptArguments& arguments, const SweepRun& sweep, Output& output);
// What the command line says of sweeps, for AppHost::set_sweeping().
AppHost::Sweeping sweeping_of(const ScriptArguments& arguments);
// Throws Error (script) where the script has made no sweep.
void look_for_sweeps(const AppHost& host, const std::string& script, std::size_t made);

// The options with which a script is run, by the command line.
ScriptOptions script_options(const ScriptArguments& arguments, const std::string& train_as,
                             Output& output);

}  // namespace mw
