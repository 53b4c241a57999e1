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
  std::string kernel;  // "true": as far as the kernel can; "require": with Landlock; empty: none
  std::vector<std::string> read, write;  // folders
  std::vector<std::string> devices;      // platforms whose devices it may drive, by name
  std::int64_t memory = std::int64_t{8} << 30;
  std::int64_t cpu = 0, time = 3600;  // seconds; 0: `time` on every core
  bool on = false;                    // this process is in one

  // What a script's Lua may take, in bytes. 0: there is no sandbox.
  std::size_t lua_memory() const { return on ? static_cast<std::size_t>(memory / 4) : 0; }
  // Adds the words of a command line that give the same.
  void add_words(std::vector<std::string>& words) const;
};

void add_sandbox(CLI::App& command, SandboxArguments& arguments);

// Throws Error (environment, "sandbox.device") if this process is in a sandbox that keeps it from
// the devices of the platform.
void check_sandbox_lets(const Platform& platform);

}  // namespace mw
