// Whole files: read in one piece, read as JSON, and written where a command's option asks for one;
// and how text stands in CSV.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// Whether the open file is the one that has this name now.
bool is_named(int descriptor, const std::filesystem::path& path);

// What a command writes where its user says. `any`: whoever writes it has made sure of the rest.
enum class OutputKind {
  page,
  drawing,
  trace,
  runs_table,
  schedule,
  calibration,
  description,
  logits,
  any
};

struct OutputFile {
  std::string asked_by;  // an option such as "--svg"
  std::string path;      // empty: not asked for
  OutputKind kind;
};

// Before anything is computed: throws Error (options) where one of these would replace a folder, a
// file of another kind (page.foreign), one of the inputs, or the file of another of these. An input
// is what it is, such as "the run file", and its path. An empty file is of every kind.
void check_outputs(const std::vector<OutputFile>& files,
                   const std::vector<std::pair<std::string, std::string>>& inputs = {});
// Makes missing folders, and replaces the file once all of the text is on the disk. Standard
// output, a device and a pipe are written to. Throws Error (options) as check_outputs() does, and
// where the file cannot be written.
void write_output(const OutputFile& file, const std::string& text);

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
