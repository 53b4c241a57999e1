// Finds out whether a file can be read at all: HDF5's own code crashes on some damaged files and
// never ends on others, and then no error of ours can follow.
#pragma once

#include <filesystem>
#include <vector>

namespace mw {

// Has a copy of this process read all that the file holds, and throws Error (options,
// "run-file.damaged") with the file's name where the copy dies of it. A file that was tried and has
// not changed since is not tried again. What merely cannot be read is no matter here: the one who
// then reads it gets an error that says what.
void probe_run_file(const std::filesystem::path& path);

// Has one copy of this process read all these files, one after the other, until it dies of one.
// Nothing is thrown here: probe_run_file() of a damaged file throws what was found.
void probe_all(const std::vector<std::filesystem::path>& paths);

// A file that this process has written itself just now: it is not tried, as it is now.
void need_not_probe(const std::filesystem::path& path);

// Whether a reader has that done before it opens a file. No: of one that was tried a moment ago and
// whose writer, a run of ours, has added to it since. A long run's file need not be read whole each
// time that somebody looks at its end.
enum class Probe : bool { no, yes };

}  // namespace mw
