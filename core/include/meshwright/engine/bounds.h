// The files that a process may read and write while it runs an untrusted script. Code that opens a
// file which a script names asks these functions first, so that errors say what to do; the
// namespaces of the sandbox lack all other files (libs/launch/sandbox/sandbox.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mw {

struct FileBounds {
  std::vector<std::filesystem::path> read;   // files, and folders with all that is below them
  std::vector<std::filesystem::path> write;  // files and folders that may be read and written
};

// Sets the bounds of this process, until its end. The process must have no threads yet.
void bound_files(FileBounds bounds);
bool files_are_bounded();

// Whether the file to which the path leads, through all links, lies within the bounds. The file
// need not exist. True if the process has no bounds.
bool may_read(const std::filesystem::path& path);
bool may_write(const std::filesystem::path& path);

// Throw Error (options, "sandbox.read" or "sandbox.write"), with this key, if the path may not be
// read or written.
void check_may_read(const std::filesystem::path& path, const std::string& key = "");
void check_may_write(const std::filesystem::path& path, const std::string& key = "");

}  // namespace mw
