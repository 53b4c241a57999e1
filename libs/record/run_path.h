// The names of a run's files: where a run file may be written, and what the hidden copy beside it
// is called.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace mw {

// Throws Error (options) unless a run file could be written at `path`: for a folder, for a file
// that is no HDF5 file (it is not ours to replace), and where the folder cannot be made or written
// to. Leaves nothing behind.
void check_writable(const std::filesystem::path& path);

// The beginning of the hidden copy's name, with the writing process; a number that cannot be
// guessed follows. The copy lies in the same folder, as renames must not cross file systems.
std::string hidden_name(const std::filesystem::path& path);
// Removes the hidden copies that killed runs left beside the run file `path`.
void remove_orphans(const std::filesystem::path& path);
void remove_quietly(const std::filesystem::path& path);

// "PID START": tells a process of this machine from a later one with the same number. Empty if
// there is no such process.
std::string process_mark(int pid);
// Whether the process that writes the run file at `path` is there. `mark`: the file's own attribute
// `process`; where it is empty, the names of hidden copies tell.
bool writer_lives(const std::filesystem::path& path, const std::string& mark);

// The inode of a path; 0 if there is no such file.
std::uint64_t inode_of(const std::filesystem::path& path);

// Copies `from` into the new file `to`, and closes `to`. Returns errno; 0: it is complete.
int copy_into(int to, const std::filesystem::path& from);

}  // namespace mw
