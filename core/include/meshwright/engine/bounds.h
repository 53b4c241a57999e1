// The files that a process may read and write for a script that nobody vouches for. Whatever opens
// a file that a script names asks here first, so that the error says what to do; the kernel's own
// bounds (launch/sandbox/sandbox.h) stand behind it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mw {

struct FileBounds {
  std::vector<std::filesystem::path> read;   // files, and folders with all that is below them
  std::vector<std::filesystem::path> write;  // may be read and written
  // Folders whose plugins may be loaded. Empty: those of any folder that may be read.
  std::vector<std::filesystem::path> plugins;
};

// From now on the process keeps to them, until its end. It must have no threads yet.
void bound_files(FileBounds bounds);
bool files_are_bounded();

// Whether the place that the path leads to, through all links, lies within the bounds; the file
// need not be there. True without bounds.
bool may_read(const std::filesystem::path& path);
bool may_write(const std::filesystem::path& path);

// Throw Error (options, "sandbox.read" and "sandbox.write") with this key if not.
void check_may_read(const std::filesystem::path& path, const std::string& key = "");
void check_may_write(const std::filesystem::path& path, const std::string& key = "");
// Throws Error (options, "sandbox.plugin" or "sandbox.read").
void check_may_load(const std::filesystem::path& plugin);

}  // namespace mw
