// The options by which a command runs a script that nobody vouches for, and what follows from them.
#pragma once

#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/platform.h"

namespace mw {

struct SandboxArguments {
  std::string asked;                     // not empty: --sandbox is given
  std::vector<std::string> read, write;  // folders that the script may read, and write
  std::vector<std::string> devices;      // names of platforms whose devices the script may drive
  std::int64_t memory = std::int64_t{8} << 30;
  std::int64_t cpu = 0, time = 3600;  // limits in seconds; cpu = 0: `time` on every core
  bool on = false;                    // this process is in a sandbox

  // Bytes that the script's Lua may allocate; 0: there is no sandbox.
  std::size_t lua_memory() const { return on ? static_cast<std::size_t>(memory / 4) : 0; }
  // Adds the words of a command line that give the same sandbox.
  void add_words(std::vector<std::string>& words) const;
};

void add_sandbox(CLI::App& command, SandboxArguments& arguments);

// Throws Error (environment, "sandbox.device") if this process is in a sandbox that keeps it from
// the devices of the platform.
void check_sandbox_lets(const Platform& platform);

}  // namespace mw
