// Files that are written beside what is printed.
#pragma once

#include <string>

namespace mw {

// Replaces the file, making missing folders. Throws Error (options) naming who asked for it: an
// option such as "--svg".
void write_output(const std::string& asked_by, const std::string& path, const std::string& text);

}  // namespace mw
