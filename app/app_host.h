// The program's side of a script: what it can name, and what its verbs do.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/chrome_trace.h"
#include "app/output.h"
#include "app/sweep/sweep.h"
#include "draw/braids.h"
#include "launch/restarts.h"
#include "lua/host.h"
#include "lua/script.h"
#include "meshwright/engine/processes.h"
#include "script/read_experiment.h"

namespace mw {
// All functions of `mw` that make a table for something built in, such as a model.
std::vector<Constructor> all_constructors();

inline constexpr const char* what_to_do_with_caught =
    "print what pcall returned beside false, or call it without pcall";

// What the command line says of how verbs run, and of what is shown of their results.
struct HostOptions {
  bool programs = false;      // `plan` lists each program too
  bool braids = false;        // `plan` draws how works that share a stage are interleaved
  bool placements = false;    // `plan` lists too which rank holds what of each parameter
  std::string diff;           // `plan` shows what the pass of that name changes
  bool by_strategy = false;   // `plan` shows what each strategy adds
  bool full = false;          // each plan of a script that makes many is shown whole
  bool must_fit = false;      // exit code 3 if a plan does not fit, or if that is not known
  bool proves_plans = false;  // each plan is proved too
  bool strict = false;        // `prove` assumes collectives that block until all ranks have come
  bool models = false;        // `plan` shows the experiment's model and nothing else
  std::string search_as;      // the software whose flags a search ends with: megatron, torchtitan
  bool pages = false;         // what a page shows of each plan is kept (AppHost::pages)
  bool traces = false;        // a trace of each plan's step is kept (AppHost::traces)
  bool force = false;         // runs start although they are predicted not to fit this machine
  std::string logits;         // the file that the verb "logits" writes
  Json what_if = Json::array();  // the --what-if questions about each plan (what_if.h)
  // Called in place of a verb with the experiments that it would run; without any for a verb that
  // runs none. It does not return.
  std::function<void(const std::vector<Experiment>&)> instead;
  bool sweeps = false;  // only the script's sweeps are asked for
};

class AppHost : public Host {
 public:
  AppHost(Output& output, PluginRegistry& plugins, HostOptions options = {})
      : output_(output), plugins_(plugins), options_(std::move(options)) {}
  // The script's text goes into run files, and data is looked for in its folder.
  void set_script(const ScriptText& script);

  std::vector<Constructor> constructors() const override { return all_constructors(); }
  std::vector<Verb> verbs() const override;
  const Options& experiment() const override { return experiment_options(); }
  PluginRegistry& plugins() override { return plugins_; }
  std::vector<std::string> result_fields(const std::string& kind) const override;
  Json call(const std::string& verb, const std::vector<Json>& experiments,
            const CallFunction& function) override;
  Json load(const std::string& path, const std::string& folder) override;
  void check_sweep(const Json& table, const std::vector<AppliedSetting>& applied) override;
  Json run_sweep(const Json& table, const Json& options, const std::string& train_as,
                 const CallFunction& function) override;
  std::string report_sweep(const Json& table, const std::string& file,
                           const Json& options) override;
  Json row_of(const Json& result) const override;
  std::string list_of(const std::vector<Json>& rows) const override;
  void show(const std::string& text) override;
  void tries(const std::string& verb) override { tried_.push_back(verb); }
  void did(const std::string& function) override { called_.insert(function); }
  void loaded(const std::string& name, const std::string& text) override {
    script_.loaded[name] = text;
  }

  // How sweeps run. `command`: keys of sweep:go. `again`: what a cell's process needs to run the
  // script in the same way. `words`: arguments of `sweep SCRIPT` for jobs.
  struct Sweeping {
    Json command = Json::object(), again = Json::object();
    std::vector<std::string> words;
  };
  void set_sweeping(Sweeping sweeping) { sweeping_ = std::move(sweeping); }
  // Says that this process runs one cell of a sweep.
  void set_cell(CellOrder order) { cell_ = std::move(order); }

  void set_attempt(Attempt attempt) { attempt_ = std::move(attempt); }

  // Sets the processes that run this script together; null: this process alone.
  void set_processes(Processes* processes) { processes_ = processes; }

  // What a page shows of each plan, in the plans' order, if HostOptions::pages is set.
  const std::vector<Json>& pages() const { return pages_; }
  // The results of searches, if HostOptions::pages is set.
  const std::vector<Json>& searches() const { return searches_; }
  const std::vector<TraceProcess>& traces() const { return traces_; }
  const std::vector<BraidPicture>& braids() const { return braids_; }

  // 0, or the exit code of the gravest result so far: 1 after a verdict that is not "equal" and a
  // run that failed, 3 after a proof that refuses, 130 after a run or verification that was
  // interrupted.
  int exit_code() const { return exit_code_; }
  // Whether a verb has given a result so far.
  bool called(const std::string& verb) const { return called_.count(verb) > 0; }
  bool called_any() const { return !called_.empty(); }
  // The verbs that the script called, those that failed too, in their order.
  const std::vector<std::string>& tried() const { return tried_; }
  // "mw.train was called 3 times and failed, …", for a verb that the script called in a pcall of
  // its own.
  std::string failure_of(const std::string& verb) const;
  // Throws Error (script): the verb failed in a pcall of the script. `nothing`: the message's
  // beginning, "script.lua: nothing was planned: ".
  [[noreturn]] void refuse_caught(const std::string& nothing, const std::string& verb) const;
  // After scripts whose mw.train calls were to be compared: throws Error unless there were two.
  void check_compared() const;

 protected:
  // Runs a verb other than compare, search and what_if.
  virtual Json done(const std::string& verb, const Experiment& experiment);

 private:
  Json compare(const std::vector<Experiment>& given);
  void refuse_without_sweep() const;
  // Runs the verb for one cell of each distinct plan of a sweep.
  Json each_plan(const SweepTable& sweep, const GoOptions& go, const SweepProgram& program,
                 const std::string& verb, const CallFunction& function);
  Json answer(const std::string& verb, const std::vector<Json>& experiments,
              const CallFunction& function);
  // Warns of each fault of a plugin that was only tried, unless `said` reports it already. Returns
  // the messages.
  std::vector<std::string> say_faults(const std::vector<Problem>& said);
  // Prints the result, with the faults of tried plugins under `faults`.
  void give(Json& result);
  Json search(const Json& table, const ReadContext& context);
  Json what_if(Json table, const ReadContext& context);
  void add_what_if(const Json& table, const ReadContext& context, Experiment experiment,
                   Json& plan);
  // For --must-fit: prints an error and sets the exit code if the plan does not fit, or if that is
  // not known.
  void look_whether_it_fits(const Json& plan);
  Json train_beside(Experiment experiment);
  Json proved_beside(const RunRequest& asked, const RunSetup& setup, Json plan);
  ReadContext context_with(const CallFunction& function);

  Output& output_;
  PluginRegistry& plugins_;
  const HostOptions options_;
  std::filesystem::path folder_;
  ScriptFiles script_;
  std::string script_name_;
  Sweeping sweeping_;
  std::optional<CellOrder> cell_;
  Attempt attempt_;
  Processes* processes_ = nullptr;
  std::set<std::string> sweeps_;   // names of the script's sweeps
  std::set<std::string> not_run_;  // sweeps that were only listed or printed
  std::vector<Json> pages_, searches_;
  std::vector<TraceProcess> traces_;
  std::vector<BraidPicture> braids_;
  int compared_ = 0;                   // experiments of `meshwright compare` so far
  std::optional<Experiment> waiting_;  // the first experiment to compare
  std::set<std::string> called_;       // verbs with a result, and functions that made something
  std::vector<std::string> tried_;     // verbs that were called, whatever came of it
  int exit_code_ = 0;
};

struct ResultField {
  std::string name, type, doc;  // type: as the Lua language server writes it; "…?" may be nil
};

// The fields of what a verb returns ("train", "plan"), of a table in a result ("predicted"), or of
// what mw.load returns ("loaded"), by lua/meshwright/results.json. Empty: the kind is unknown, and
// its fields are not checked.
const std::vector<ResultField>& result_fields(const std::string& kind);

}  // namespace mw
