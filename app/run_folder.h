// The places where a run writes, none of which may be another run's: its folder, its checkpoints
// and its log; and the checkpoint that a run goes on from.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "app/run_log.h"
#include "checkpoint/run_checkpoints.h"
#include "launch/restarts.h"
#include "meshwright/engine/registry.h"
#include "record/log_claim.h"
#include "script/experiment.h"

namespace mw {

// What a run folder holds beside the run file: script, experiment, plan, machine, what was said,
// and the result. Without a folder (RunOutputs::folder) all of it does nothing.
class RunFolder {
 public:
  // Writes script.lua, experiment.json, plan.txt and machine.json, begins output.txt, and removes
  // the result of an earlier run. Throws Error (run) if it cannot. `goes_on`: the run goes on from
  // a checkpoint.
  RunFolder(const RunOutputs& outputs, const Json& resolved, bool goes_on, const RunOrigin& origin,
            const std::string& plan);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Throws Error (options, log) if the folder has files of these names, but no run file.
  static void check(const RunOutputs& outputs);

  void say(const std::string& text);           // appends to output.txt
  std::FILE* output() const { return said_; }  // null without a folder
  // Writes result.json, as --json prints it, whole or not at all.
  void finish(const Json& result);

 private:
  std::string folder_;
  const std::map<std::string, std::string>* loaded_;  // RunOrigin::loaded
  std::FILE* said_ = nullptr;
};

// Copies the files that a script has loaded into a folder that has a copy of the script, so that it
// runs from there.
void write_loaded(const std::string& folder, const std::map<std::string, std::string>& loaded);

// { host, os, cpu, cores, instruction_set, memory (bytes), versions = { meshwright, torch, hdf5,
// lua, toolchain }, plugins = { name = version } of those that the plan names }.
Json machine_json(const Plan& plan, PluginRegistry& plugins);

// Where the run file or folder is and the events are, a line each; empty if there are none.
std::string files_text(const RunOutputs& outputs);

// Where a run begins: anew, or from a checkpoint.
struct CheckpointStart {
  std::unique_ptr<Checkpoints> checkpoints;  // null: the experiment asks for none
  std::vector<std::string> notes;            // what people should know
  std::vector<std::string> lost;             // notes on what is missing, shown even if quiet
  // The checkpoint that the run goes on from; null: it begins anew.
  const Checkpoint* from() const { return checkpoints ? checkpoints->from() : nullptr; }
};

// Holds the experiment's folder of checkpoints. If the run is to go on, chooses the newest intact
// checkpoint, and sets the setup to begin there. A training that was started again goes on from
// what its earlier starts wrote, whatever else is in the folder. The setup outlives what is
// returned. Throws Error (options): a folder that cannot be written to, or is another run's;
// checkpoints of another experiment; none that is intact.
CheckpointStart begin_checkpoints(const Experiment& experiment, RunSetup& setup,
                                  const Attempt& attempt = {});

// Holds the log of a run of so many steps, if it has one. `from`: the checkpoint that the run goes
// on from, whose log it takes over; null: it begins anew.
LogClaim claim_log(const RunRequest& asked, const RunOutputs& outputs, std::int64_t steps,
                   const Checkpoint* from, const Attempt& attempt = {});

}  // namespace mw
