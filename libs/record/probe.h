// Finds out whether a file can be read at all: HDF5's own code crashes on some damaged files and
// never ends on others, and then this program could not report an error.
#pragma once

#include <filesystem>
#include <vector>

namespace mw {

// Has a copy of this process read all that the file holds, and throws Error (options,
// "run-file.damaged") with the file's name where the copy dies of it. A file that was tried and has
// not changed since is not tried again. Other errors of reading are ignored here: whoever then
// reads the file gets them.
void probe_run_file(const std::filesystem::path& path);

// Has one copy of this process read all these files, one after the other, until it dies of one.
// Throws nothing: probe_run_file() of a damaged file throws what was found.
void probe_all(const std::vector<std::filesystem::path>& paths);

// Marks a file that this process has just written as readable in its present state, so that it is
// not tried.
void need_not_probe(const std::filesystem::path& path);

// Whether a reader calls probe_run_file() before it opens a file. `no`: the file was tried a moment
// ago, and its writer, a run of ours, has added to it since. A long run's file need not be read
// whole each time that somebody looks at its end.
enum class Probe : bool { no, yes };

}  // namespace mw
