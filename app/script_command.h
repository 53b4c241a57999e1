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
  HostOptions host;                   // how its verbs are done
  std::string html, plan_trace;       // of plan: the page and the trace to write; empty: none
  std::string braids_svg;             // of plan: the drawing of braids to write; empty: none
  Json go = Json::object();           // what the command line says of sweeps: keys of sweep:go
  std::string cluster, stack;         // what plans are priced for; empty: as the script says
  int nodes = 0;                      // of the cluster; 0: its own number
  std::vector<std::string> what_ifs;  // of plan: knobs and their values
  Restarts restarts;                  // of run
  std::string attempt;                // of a process that run_with_restarts has started; or empty
  std::string chaos;                  // the folder of what disturbs the run; empty: nothing does
};

// SCRIPT and the options that all have; the footer with an example of the command's words.
void add_script(CLI::App& command, ScriptArguments& arguments, const std::string& example);
void add_force(CLI::App& command, ScriptArguments& arguments);

// Throws Error (script) where a script cannot be started several times, or where two things would
// start its processes. `asked_by`: the command or option that starts it again.
void check_starts_again(const std::string& asked_by, const std::string& script,
                        const std::string& launcher, const ProcessArguments& processes);

// `train_as`: what each mw.train is. Throws Error (script) if a result was asked for and the script
// gives none.
int run_script(const ScriptArguments& arguments, const std::string& train_as, Output& output);

// The script that is run for its sweeps: all of them, or one cell in a process of its own.
struct SweepRun {
  std::optional<CellOrder> cell;
  std::function<ScriptText()> text;  // in place of what stands in the script's file now
};
int run_sweeping(const ScriptArguments& arguments, const SweepRun& sweep, Output& output);
// The command line of a sweep's job, behind its own script.
AppHost::Sweeping sweeping_of(const ScriptArguments& arguments);
// Throws Error (script) where the script has made no sweep.
void look_for_sweeps(const AppHost& host, const std::string& script, std::size_t made);

// How the command line's settings reach a script.
ScriptOptions script_options(const ScriptArguments& arguments, const std::string& train_as,
                             Output& output);

}  // namespace mw
