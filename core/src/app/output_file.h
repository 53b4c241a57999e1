// Files that a command writes beside what it prints.
#pragma once

#include <string>

namespace mw {

// Replaces the file, making missing folders. Throws Error (options) naming the option that asked
// for it.
void write_output(const std::string& option, const std::string& path, const std::string& text);

}  // namespace mw
