// Reads whole files, as text or as JSON, writes the files that a command's options ask for, and
// quotes text for CSV.
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

// All bytes of a regular file, or of a pipe that this process was given; nullopt if it is not there
// or cannot be read to its end. For files that fit memory many times.
std::optional<std::string> whole_file(const std::filesystem::path& path);

// Whether a JSON text nests lists and tables more than 200 deep. Code that copies, compares or
// writes a JSON value recurses at each level, and would run out of stack.
bool is_nested_too_deep(std::string_view json);
// The JSON in a text from elsewhere; null if the text is no JSON, or is nested too deep.
Json json_in(std::string_view text);
// The JSON in a file, which another process may be replacing; null if the file is missing, may not
// be read, holds no JSON, or is nested too deep.
Json read_json(const std::filesystem::path& file);

// Whether the open file `descriptor` is the one that `path` names now.
bool is_named(int descriptor, const std::filesystem::path& path);

// The kind of file that a command writes where its user says. `any`: the caller checks by itself
// what it would replace.
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
  std::string path;      // path of the file; empty: not asked for
  OutputKind kind;
};

// Checks outputs before anything is computed: throws Error (options) where one of `files` would
// replace a folder, a file of another kind (page.foreign), an input, or the file of another output.
// An input is a description, such as "the run file", and a path. An empty file counts as of every
// kind.
void check_outputs(const std::vector<OutputFile>& files,
                   const std::vector<std::pair<std::string, std::string>>& inputs = {});
// Writes `text`: makes missing folders, and replaces the file once all of the text is on the disk.
// Standard output, devices and pipes are written to directly. Throws Error (options) as
// check_outputs() does, and where the file cannot be written.
void write_output(const OutputFile& file, const std::string& text);

// The error for a file of the program's own that cannot be written. `reason`: an errno.
Error not_written(const std::filesystem::path& path, int reason);

// A temporary folder with a name of its own; the destructor removes it. Throws Error (environment)
// if it cannot be made.
class WorkFolder {
 public:
  explicit WorkFolder(const std::string& prefix);  // beginning of the folder's name
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void keep() { kept_ = true; }  // the destructor leaves the folder

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

// The text as a quoted field of a CSV file. A text that begins as a formula does, and is no number,
// gets an apostrophe in front, so that spreadsheets take it for text.
std::string csv_quoted(const std::string& text);

}  // namespace mw
