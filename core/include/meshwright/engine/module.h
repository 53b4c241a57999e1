// One loadable module: opened, judged, kept for the life of the process.
#pragma once

#include <filesystem>
#include <string>

#include "meshwright/plugin.h"

namespace mw {

struct ModuleVerdict {
  const PluginDescriptor* descriptor = nullptr;  // null: the module is no usable plugin
  std::string code, problem, hint;               // why (docs/errors.md), and what to do
};

// Never throws for what is wrong with the file. Problems do not name the file.
ModuleVerdict open_module(const std::filesystem::path& file);

// Judges the descriptor at `head`, reading no further than what it has judged so far.
ModuleVerdict judge(const PluginHead* head);

// "strategy, scheduler, …", as --kind has them.
std::string kinds_there_are();

// "libfoo.so.1: cannot open shared object file: …" and its like, for people. `message` is dlopen's.
ModuleVerdict translate_load_error(const std::string& message);

}  // namespace mw
