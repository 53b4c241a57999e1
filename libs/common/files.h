// Whole files: read in one piece, read as JSON, and written where a command's option asks for one;
// and how text stands in CSV.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

// All bytes of a regular file, or of a pipe that this process was given; none if it is not there or
// cannot be read to its end. For files that fit memory many times.
std::optional<std::string> whole_file(const std::filesystem::path& path);

// Whether lists and tables of a JSON text lie in one another more than 200 deep. What copies,
// compares or writes such a value calls itself for each of them, and would run out of its stack.
bool is_nested_too_deep(std::string_view json);
// The JSON that a text from elsewhere holds; null if it holds none, or is nested too deep.
Json json_in(std::string_view text);
// The JSON in a file, which another process may be replacing; null if there is no file, or if it
// holds no such JSON.
Json read_json(const std::filesystem::path& file);

// Replaces the file, making missing folders. Throws Error (options) naming who asked for it: an
// option such as "--svg".
void write_output(const std::string& asked_by, const std::string& path, const std::string& text);

// That a file of the program's own cannot be written, and why. `reason`: as errno has it.
Error not_written(const std::filesystem::path& path, int reason);

// A folder that no other process knows, gone with it. Throws Error (environment) if none can be
// made.
class WorkFolder {
 public:
  explicit WorkFolder(const std::string& prefix);  // of its name in the folder for temporary files
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void keep() { kept_ = true; }  // it stays

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

// The text as a field of a CSV file, in quotes. One that begins as a formula does, and is no
// number, gets an apostrophe in front, which makes spreadsheets take it for text.
std::string csv_quoted(const std::string& text);

}  // namespace mw
