// Runs an untrusted script in a process that bubblewrap (bwrap) keeps to namespaces of its own: it
// sees the folders that it may read and write, no other process and no network. Limits of resources
// bound its memory, CPU seconds and threads. The front end limits the script's Lua by itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/error.h"

namespace mw {

struct Sandbox {
  std::vector<std::filesystem::path> read, write;  // allowed beside what the program itself needs
  std::vector<std::filesystem::path> plugins;      // folders that are searched for plugins
  std::vector<std::string> devices;                // platforms whose devices it may use
  std::vector<std::filesystem::path> drives;       // files of these devices' drivers
  std::int64_t memory = std::int64_t{8} << 30;     // bytes that each process may allocate
  std::int64_t cpu = 0;      // CPU seconds of each process; 0: `time` on every core
  std::int64_t time = 3600;  // seconds until all its processes are ended
};

// Why no sandbox can be made on this machine (environment, "sandbox.kernel"); nothing: one can.
std::optional<Error> why_no_sandbox();

// Runs this program again in the sandbox, with these words of its command line, and passes signals
// on to it. Returns its exit code, once all processes in the sandbox have ended. This process must
// have no other children. Throws Error:
// - as why_no_sandbox() has it;
// - (run, "sandbox.time", "sandbox.cpu", "sandbox.crashed") if a limit or a signal ended it.
int run_bound(const Sandbox& sandbox, const std::vector<std::string>& words);

// Limits the resources of this process, which run_bound() has started, or a process in its sandbox,
// and bounds the files that a script may name (meshwright/engine/bounds.h). This process must have
// no threads yet. Throws Error (environment, "sandbox.kernel").
void bind_process(const Sandbox& sandbox);

// The sandbox in which this process was started; nothing: none.
std::optional<Sandbox> inherited_sandbox();

}  // namespace mw
