// File helpers: atomic replacement, the user's cache folder, search paths, and the folders of the
// program itself.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace mw {

// Makes an empty file `folder/name.XXXXXXXXXXXXXXXX` with an unguessable name, and opens it for
// writing. Never opens an existing file or link. Sets `path` to the file's name. Returns the
// descriptor, or -1 with errno.
int create_unguessable(const std::filesystem::path& folder, const std::string& name,
                       std::filesystem::path& path);

// Writes all of `text`; false with errno if it could not.
bool write_whole(int file, const char* text, std::size_t size);

// Says which kind of irregular file a path leads to: "a named pipe", "a folder", "a device",
// "a socket". Empty for a regular file, for a file that does not exist, and for a pipe that this
// process inherited, as /dev/stdin and /dev/fd/63 name one.
std::string irregular(const std::filesystem::path& path);
// Throws Error (options, "file.read"), with this key, if irregular() is not empty: opening a named
// pipe or reading a device may never return.
void check_regular(const std::filesystem::path& path, const std::string& key = "");

// Writes a file so that a reader finds the old file or the whole new one, with its bytes on the
// disk. Replaces the target of a symbolic link, not the link. A device, or a pipe that somebody
// reads, is written to, not replaced. Returns 0 or errno.
int replace_whole(const std::filesystem::path& path, std::string_view text);

// Follows a symbolic link, through all links, to the file that it names, which need not exist.
// Returns any other path unchanged. A rename to the result replaces the file, not the link.
std::filesystem::path behind_links(const std::filesystem::path& path);

// Measurements of this machine, which the user's cache folder keeps for later processes. The type
// is not Json, because reading n keys into an ordered object takes time O(n²).
using Cache = nlohmann::json;

// $XDG_CACHE_HOME/meshwright or ~/.cache/meshwright.
std::filesystem::path cache_folder();
// Returns an object, which is empty if the file does not exist or is damaged.
Cache read_cache(const std::filesystem::path& file);
// Does nothing if the file cannot be written. A reader never sees half a file.
void write_cache(const std::filesystem::path& file, const Cache& cache);

// Finds the file that a script means by `path`: below the first of `folders` in which the path
// exists. An absolute path, or a path that exists in no folder, is returned as it is; in a sandbox,
// the latter is placed below a folder that may be read.
std::filesystem::path find_file(const std::filesystem::path& path,
                                const std::vector<std::filesystem::path>& folders);

std::filesystem::path program_path();  // the running executable; empty if the system does not say

// The folder of the program's own files (Lua code, templates, texts to train on):
// ../share/meshwright beside the executable, both in a build folder and installed.
std::filesystem::path share_folder();

}  // namespace mw
