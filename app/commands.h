// The commands, each in a function that returns the exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/joined.h"
#include "app/output.h"
#include "app/restarts.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/registry.h"
#include "meshwright/json.h"

namespace mw {

constexpr int exit_cells_failed = 4;

// What commands that run scripts are given.
struct ScriptArguments {
  std::string script;                // a path; "-": standard input
  std::vector<std::string> scripts;  // of compare
  std::vector<std::string> settings, plugin_path;
  bool program = false;            // list each program too
  bool placements = false;         // ... and who holds what
  bool full = false;               // of plan: each of many plans is shown whole
  bool strict = false;             // of prove: collectives block until all have come
  bool must_fit = false;           // of plan: what does not fit ends it as what is refused does
  bool model = false;              // show each experiment's model instead of planning it
  std::vector<std::string> words;  // what stands after "--": the script's `arg`
  std::string html;                // of plan: the page to write; empty: none
  std::string plan_trace;          // of plan: the trace to write; empty: none
  std::string logits;              // of logits: the file to write
  bool force = false;              // start what this machine's memory is predicted not to hold
  Json go = Json::object();        // what the command line says of sweeps: keys of sweep:go
  std::string cluster, stack;      // what plans are priced for; empty: as the script says
  int nodes = 0;                   // of the cluster; 0: its own number
  ProcessArguments processes;      // of run, verify and compare
  Restarts restarts;               // of run
  std::string attempt;             // of a process that run_with_restarts has started; or empty
};
// `train_as`: what each mw.train is. Throws Error (script) if a result was asked for and
// the script gives none.
int run_script(const ScriptArguments& arguments, const std::string& train_as, Output& output);
// Runs the script's sweeps, those too that it does not run itself.
int run_sweeps(const ScriptArguments& arguments, Output& output);
// One cell of a sweep, as that has written it into the file; for the sweep's own processes.
int run_sweep_cell(const std::string& file, Output& output);
// Each mw.train is one of the two experiments: of two scripts, or of one.
int run_compared(const ScriptArguments& arguments, Output& output);
int run_repl(const ScriptArguments& arguments, Output& output);
// Every row of the tables of tests/reference as a plan on its cluster; the script's `words` say
// which.
int bench_prediction(const ScriptArguments& arguments, Output& output);

// All plugins of the path: name, version, summary, file; broken ones with their reasons.
int list_plugins(PluginRegistry& plugins, Output& output);
// One plugin's options: types, ranges, defaults, docs.
int show_plugin(PluginRegistry& plugins, const std::string& name, Output& output);

// A new plugin's folder, of the name, in the working directory. Throws Error (script) for a name or
// a kind that will not do, or a folder that is there.
struct NewPluginArguments {
  std::string name, kind;
  bool lua = false;  // a script, not C++
};
int new_plugin(const NewPluginArguments& arguments, PluginRegistry& plugins, Output& output);

// Tests a plugin: what it registers is tried alone and beside the forms, and each check reported; 1
// if one failed. `what`: a plugin's name, its file (NAME.so), or a script (FILE.lua) whose every
// mw.train is tried instead.
int test_plugin(const ScriptArguments& arguments, const std::string& what, Output& output);

// What this machine and this installation have; 5 if something is missing.
int doctor(PluginRegistry& plugins, Output& output);
// The type file for editors, to stdout.
int print_lua_types(PluginRegistry& plugins, Output& output);

// A pipeline schedule: the grid, its bubble, what each stage holds. Throws Error with what the
// check refuses.
struct ScheduleArguments {
  std::string name;                              // a scheduler's, or a CSV file
  int stages = 0, microbatches = 0, chunks = 0;  // 0: not given
  std::vector<double> times = {1, 1, 1};         // F, I, W of a stage and microbatch
  double send = 0;                               // between two stages, in the same unit
  double memory = 0;                             // microbatches that a stage may hold; 0: no limit
  std::string csv, svg, trace;                   // files to write; empty: none
};
int show_schedule(const ScheduleArguments& arguments, PluginRegistry& plugins, Output& output);

// A step of a run file as a timeline, measured beside predicted.
struct TraceArguments {
  std::string run, trace, svg;
  std::optional<std::int64_t> step;  // the one of median duration if not given
  bool predicted = false;            // the prediction alone
};
int show_trace(const TraceArguments& arguments, Output& output);

// The checkpoints in a folder, or one; 1 if one of them is broken.
struct CheckpointsArguments {
  std::string path;
  bool quick = false;  // files are not read, only that they are there with their sizes
};
int list_checkpoints(const CheckpointsArguments& arguments, Output& output);

// A checkpoint's weights, or those of the newest in a folder, as a folder for transformers.
struct ExportArguments {
  std::string checkpoint, folder;
  std::string dtype;  // empty: the experiment's precision
  std::string shard = "5GB";
  bool overwrite = false;
};
int export_checkpoint(const ExportArguments& arguments, PluginRegistry& plugins, Output& output);

// Runs and sweeps as one HTML page.
struct ReportArguments {
  std::vector<std::string> runs;      // run files, run folders, sweep folders, folders of these
  std::string file, title, baseline;  // see ReportInput
};
int show_report(const ReportArguments& arguments, Output& output);

// Runs that were: list, show, compare, export, tail. A FILE is a run file, the folder of a run, of
// a sweep, or any folder of these (record/run_set.h).
struct RunsArguments {
  std::vector<std::string> files;  // of list: none stands for "runs"
  std::string where, sort, baseline, table = "steps", out;
  bool reverse = false, jsonl = false, csv = false, follow = false;
  int last = 10;  // steps
};
int list_runs(const RunsArguments& arguments, Output& output);
int show_run(const RunsArguments& arguments, Output& output);
int compare_runs(const RunsArguments& arguments, Output& output);
int export_runs(const RunsArguments& arguments, Output& output);
int tail_run(const RunsArguments& arguments, Output& output);

// This machine, measured for predictions.
struct CalibrateArguments {
  std::string file;    // to write; empty: calibration_file()
  bool quick = false;  // a few small sizes
};

// Its text: every constructor, verb, plugin and the experiment table as LuaLS annotations.
std::string lua_types(PluginRegistry& plugins);

}  // namespace mw
