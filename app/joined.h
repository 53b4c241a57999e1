// A command that runs in several processes: joins those that a launcher has started, keeps all but
// the first one silent, and ends them together.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/output.h"
#include "launch/processes.h"
#include "meshwright/engine/processes.h"
#include "meshwright/engine/registry.h"
#include "meshwright/json.h"
#include "script/experiment.h"

namespace mw {

struct ProcessArguments {
  int processes = 0;               // processes to start on this machine; 0: not given
  std::string communicator;        // plugin that connects processes; empty: the launcher's own
  std::vector<std::string> words;  // words of the command line, for the processes to start
};

// Whether this process is one of several and not the first one, which prints for all.
bool is_silent_process(const ProcessArguments& arguments);

// Starts as many copies of this program as were asked for, waits for them, and returns their exit
// code; nothing if none were asked for, or if this is one of them. Throws Error if they cannot be
// started, or if a launcher has started another number.
std::optional<int> start_processes(const ProcessArguments& arguments, Output& output);

// Whether this process leaves a command for one process to the first one, and has nothing to do.
// Throws Error (script, "launch.command") for commands that would start processes of their own.
bool left_to_first(const std::string& command, const ProcessArguments& arguments);

class Joined {
 public:
  // Joins the processes that a launcher has started, if there is one. Throws Error (environment) if
  // that fails.
  Joined(const ProcessArguments& arguments, PluginRegistry& plugins, Output& output);

  Processes* processes() const { return processes_.get(); }  // null: this process is alone
  // Runs the command, which returns its exit code or throws, and ends all processes with the exit
  // code of the first one. Prints once what failed.
  int run(const std::function<int()>& command);

 private:
  Output& output_;
  std::unique_ptr<JoinedProcesses> processes_;
};

// Throws ProcessFailed in every process, with the first key that differs, if the experiments are
// not the same in all processes. Otherwise each experiment will run in these processes.
void agree_on(Processes& processes, const std::string& verb, std::vector<Experiment>& experiments);

// Returns the first process' result in every process.
Json result_of_first(Processes& processes, const std::string& verb, const Json& result);

// The first place in which two values differ, "plan[1].ways", and what both have there.
struct Difference {
  std::string key;
  Json one, other;
};
Difference first_difference(const Json& one, const Json& other, const std::string& key = "");

// the name for no communicator: each process runs by itself
inline constexpr const char* by_itself = "threads";

}  // namespace mw
