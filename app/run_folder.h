// What a run folder holds beside the run file: script, experiment, plan, machine, what was said,
// and the result.
#pragma once

#include <cstdio>
#include <string>

#include "app/run_log.h"
#include "meshwright/engine/registry.h"
#include "script/experiment.h"

namespace mw {

// Without a folder (Experiment::folder) all of it does nothing.
class RunFolder {
 public:
  // Writes script.lua, experiment.json, plan.txt and machine.json, and begins output.txt; a result
  // of an earlier run goes. Throws Error (run) if it cannot.
  RunFolder(const Experiment& experiment, const RunOrigin& origin, const std::string& plan);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Throws Error (options, log) if files of these names are there that no run has written.
  static void check(const Experiment& experiment);

  void say(const std::string& text);           // output.txt
  std::FILE* output() const { return said_; }  // null without a folder
  // result.json, as --json has it, whole or not at all.
  void finish(const Json& result);

 private:
  std::string folder_;
  std::FILE* said_ = nullptr;
};

// { host, os, cpu, cores, instruction_set, memory (bytes), versions = { meshwright, torch, hdf5,
// lua, toolchain }, plugins = { name = version } of those that the plan names }.
Json machine_json(const Experiment& experiment, PluginRegistry& plugins);

}  // namespace mw
