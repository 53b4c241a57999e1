// Reads a run file (schema meshwright.run/1) back: what `meshwright trace` needs of it.
//
// A run may be going on: the file under its path is complete at any moment (run_writer.h), and what
// is read is as of the moment it was opened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "record/hdf5_file.h"
#include "record/rows.h"

namespace mw {

class RunReader {
 public:
  // Throws Error (options) if there is no such file or it is no run file.
  explicit RunReader(const std::filesystem::path& path);

  std::string plan();  // JSON
  std::vector<StepRow> steps();
  // Of one step, in the order in which ranks wrote them; empty if there are none.
  std::vector<ActionRow> actions(std::int64_t step);
  std::vector<ActionRow> predicted_actions();  // empty in run files that lack the table

 private:
  std::uint64_t first_of(std::int64_t step);  // row of /actions with at least this step

  std::filesystem::path path_;
  Hdf5File file_;
};

}  // namespace mw
