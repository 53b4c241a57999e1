// Runs an untrusted script in a process that has no sockets and is limited in the files that it
// reads and writes, in memory, in CPU seconds and in time. The front end limits the script's Lua by
// itself; the functions here ask the kernel to limit native code too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

struct Sandbox {
  std::vector<std::filesystem::path> read, write;  // allowed beside what the program itself needs
  std::vector<std::filesystem::path> plugins;      // folders that are searched for plugins
  // Names of the platforms whose devices the process may use. They are loaded before it is bound.
  std::vector<std::string> devices;
  std::vector<std::filesystem::path> drives;    // files of these devices' drivers
  std::int64_t memory = std::int64_t{8} << 30;  // bytes that all processes in it may hold together
  std::int64_t cpu = 0;           // CPU seconds of each process; 0: `time` on every core
  std::int64_t time = 3600;       // seconds until the process is ended
  bool needs_kernel = false;      // fails where the kernel has no Landlock
  bool starts_processes = false;  // may start processes of this program, as a sweep does
};

// Forks a child process that is bound, and waits for it. Returns nothing in the child, which runs
// the rest of the program. In this process returns the child's exit code, once the child and all
// processes that it has left behind have ended. If the child did not end by itself, calls `tell` in
// this process with the reason (run, "sandbox.time", "sandbox.cpu", "sandbox.memory",
// "sandbox.processes", "sandbox.crashed"). This process must have no threads yet. Throws Error
// (run, "run.exception") if no process starts. In the child it throws as bind_process() does.
std::optional<int> run_bound(const Sandbox& sandbox, const std::function<void(const Error&)>& tell);

// Binds this process, and all processes that it starts, to a sandbox until it ends: limits files,
// resources and system calls. Throws Error (environment,
// "sandbox.kernel") if the kernel refuses, or if Landlock is needed and the kernel has none.
void bind_process(const Sandbox& sandbox);

// The sandbox inherited from the process that started this one; nothing: none.
std::optional<Sandbox> inherited_sandbox();

// --- What the kernel does ---

// The version of the kernel's Landlock; 0 if it has none.
int landlock_version();

// Files that a process may read, write and execute; a folder stands for all that is below it.
struct FileAccess {
  std::vector<std::filesystem::path> read, write, run;
};
// Denies this thread, and all processes that it starts, other files, TCP, and signals to processes
// outside, as far as the version of the kernel's Landlock can.
void restrict_files(const FileAccess& reach);

// Drops all capabilities but those by which root opens files of others: with the others the kernel
// lets a process look into other processes past Landlock.
void drop_capabilities();

// Denies this thread, and all processes that it starts, the system calls for sockets, for looking
// into other processes or setting their limits, for memory that belongs to no process, for changing
// the rights and owners of files, and for administration. Unless `may_fork`, also those that start
// processes. With `drives_devices` it may have sockets at which a driver listens, but connect none.
void restrict_calls(bool may_fork, bool drives_devices);

}  // namespace mw
