// Whole files: read in one piece, read as JSON, and written where a command's option asks for one;
// and how text stands in CSV.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "meshwright/json.h"

namespace mw {

// All bytes of a file; none if it is not there or cannot be read to its end. For files that fit
// memory many times.
std::optional<std::string> whole_file(const std::filesystem::path& path);

// The JSON in a file, which another process may be replacing; null if there is no file, or if it
// holds no JSON.
Json read_json(const std::filesystem::path& file);

// Replaces the file, making missing folders. Throws Error (options) naming who asked for it: an
// option such as "--svg".
void write_output(const std::string& asked_by, const std::string& path, const std::string& text);

// The text as a field of a CSV file, in quotes.
std::string csv_quoted(const std::string& text);

}  // namespace mw
