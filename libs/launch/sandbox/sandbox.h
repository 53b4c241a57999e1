// Runs a script that nobody vouches for in a process that has no sockets and is bounded in the
// files that it reads and writes, in memory, in CPU seconds and in time. The front end bounds the
// script's Lua by itself; what is declared here asks the kernel to bound native code too.
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
  std::vector<std::filesystem::path> read, write;  // beside what the program itself needs
  std::vector<std::filesystem::path> plugins;      // folders that are searched for plugins
  // Platforms whose devices it may drive, by name: they are loaded before the process is bound. The
  // files of their drivers.
  std::vector<std::string> devices;
  std::vector<std::filesystem::path> drives;
  std::int64_t memory = std::int64_t{8} << 30;  // bytes that all its processes may hold
  std::int64_t cpu = 0;           // seconds that a process may compute; 0: `time` on every core
  std::int64_t time = 3600;       // seconds
  bool needs_kernel = false;      // refused where the kernel has no Landlock
  bool starts_processes = false;  // of this program, as a sweep does
};

// Runs the rest of the program in a child process, which is bound, and waits for it. Returns
// nothing in the child. Returns the child's exit code in this process, once the child and all
// processes that it has left behind have ended. If the child did not end by itself, `tell` is
// called in this process with the reason (run, "sandbox.time", "sandbox.cpu", "sandbox.memory",
// "sandbox.processes", "sandbox.crashed"). This process must have no threads yet. Throws Error
// (run, "run.exception") if no process starts; what bind_process() throws, it throws in the child.
std::optional<int> run_bound(const Sandbox& sandbox, const std::function<void(const Error&)>& tell);

// Bounds this process, and all that it starts, until its end. Throws Error (environment,
// "sandbox.kernel") if the kernel refuses, or if Landlock is needed and the kernel has none.
void bind_process(const Sandbox& sandbox);

// The sandbox that the process which started this one has bound itself to, and with it this one.
std::optional<Sandbox> inherited_sandbox();

// --- What the kernel does ---

// The version of the kernel's Landlock; 0 if it has none.
int landlock_version();

struct Reach {
  std::vector<std::filesystem::path> read, write, run;  // files, and folders with what is below
};
// Keeps this thread, and all that it starts, to these files, and from TCP and from signals to
// processes outside, as far as the kernel's version can.
void restrict_files(const Reach& reach);

// Gives up what root may do beyond opening files of others: with these the kernel lets a process
// look into others past Landlock.
void drop_capabilities();

// Keeps this thread, and all that it starts, from sockets, from looking into other processes or
// setting their limits, from memory that belongs to no process, from changing the rights and owners
// of files, and from what only administrators do. Unless `may_fork`, it starts no processes either.
// Where it drives devices it may have sockets at which their driver listens, and connects none.
void restrict_calls(bool may_fork, bool drives_devices);

}  // namespace mw
