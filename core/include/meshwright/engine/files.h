// Files: made whole and renamed into place, kept in the user's cache folder, found on a search
// path, and those that belong to the program.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace mw {

// Makes an empty file `folder/name.XXXXXXXXXXXXXXXX` under a name that cannot be guessed, and opens
// it for writing: no file that is there, and no link that somebody has laid, is ever opened. `path`
// becomes its name. Returns the descriptor, or -1 with errno.
int create_unguessable(const std::filesystem::path& folder, const std::string& name,
                       std::filesystem::path& path);

// Writes all of `text`; false with errno if it could not.
bool write_whole(int file, const char* text, std::size_t size);

// What a path leads to that is there and is no regular file: "a named pipe", "a folder",
// "a device", "a socket". Empty for all else, and for a pipe that whoever started this process has
// opened for it, as /dev/stdin and /dev/fd/63 name one.
std::string irregular(const std::filesystem::path& path);
// Throws Error (options, "file.read") with this key for such a path: to open a named pipe or to
// read a device may never come to an end.
void check_regular(const std::filesystem::path& path, const std::string& key = "");

// Replaces the file, or that behind a symbolic link, or makes it: whoever reads it finds the old
// one or the whole new one, on the disk. A device or a pipe that somebody reads is written to, and
// stays. Returns errno; 0: done.
int replace_whole(const std::filesystem::path& path, std::string_view text);

// The file that a path means where it is a symbolic link, through all links, whether it is there or
// not; any other path as it is. So a rename to it replaces the file, not the link.
std::filesystem::path behind_links(const std::filesystem::path& path);

// What was found out about this machine, kept in the user's cache folder from process to process.
// Not Json: to read thousands of keys that keep their order takes the square of their number.
using Cache = nlohmann::json;

// $XDG_CACHE_HOME/meshwright or ~/.cache/meshwright.
std::filesystem::path cache_folder();
// An object: empty if there is no such file or it is damaged.
Cache read_cache(const std::filesystem::path& file);
// A file that cannot be written is not; a reader never sees half of one.
void write_cache(const std::filesystem::path& file, const Cache& cache);

// Where a file is that a script means by a path: the path below the first of these folders in which
// it exists; an absolute one, and one that is in none of them, as it is, but in a sandbox below one
// of the folders that may be read.
std::filesystem::path find_file(const std::filesystem::path& path,
                                const std::vector<std::filesystem::path>& folders);

std::filesystem::path program_path();  // of the file that runs; empty if the system does not say

// Where the files lie that belong to the program, its Lua side, templates and texts to train on:
// ../share/meshwright beside it, in a build folder and installed alike.
std::filesystem::path share_folder();

}  // namespace mw
