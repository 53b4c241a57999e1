// The names of a run's files: where one may be written, and the hidden copy beside it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace mw {

// Throws Error (options) unless a run file could be written at `path`: a folder there, a file that
// is no HDF5 file (it is not ours to replace), or a folder that cannot be made or written to.
// Leaves nothing behind.
void check_writable(const std::filesystem::path& path);

// The hidden copy's name: in the same folder (renames must not cross file systems), with the
// process that writes it; a number that cannot be guessed follows.
std::string hidden_name(const std::filesystem::path& path);
// Removes the hidden copies of runs to the same path that were killed.
void remove_orphans(const std::filesystem::path& path);
void remove_quietly(const std::filesystem::path& path);

// "PID START": tells a process of this machine from a later one with the same number. Empty if
// there is no such process.
std::string process_mark(int pid);
// Whether the process that writes the run file at `path` is there. `mark`: the file's own attribute
// `process`; where it is empty, hidden copies tell.
bool writer_lives(const std::filesystem::path& path, const std::string& mark);

// 0 if there is no such file.
std::uint64_t inode_of(const std::filesystem::path& path);

// Fills the new file `to`, and closes it. Returns errno; 0: it is complete.
int copy_into(int to, const std::filesystem::path& from);

}  // namespace mw
