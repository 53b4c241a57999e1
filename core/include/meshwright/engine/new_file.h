// A file that nobody else has: made beside another, to be renamed to it once it is complete.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace mw {

// Makes an empty file `folder/name.XXXXXXXXXXXXXXXX` under a name that cannot be guessed, and opens
// it for writing: no file that is there, and no link that somebody has laid, is ever opened. `path`
// becomes its name. Returns the descriptor, or -1 with errno.
int create_unguessable(const std::filesystem::path& folder, const std::string& name,
                       std::filesystem::path& path);

// Writes all of `text`; false with errno if it could not.
bool write_whole(int file, const char* text, std::size_t size);

// Replaces the file, or that behind a symbolic link, or makes it: whoever reads it finds the old
// one or the whole new one, on the disk. Returns errno; 0: done.
int replace_whole(const std::filesystem::path& path, std::string_view text);

// The file that a path means where it is a symbolic link, through all links, whether it is there or
// not; any other path as it is. So a rename to it replaces the file, not the link.
std::filesystem::path behind_links(const std::filesystem::path& path);

}  // namespace mw
