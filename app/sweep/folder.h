// The folder of a sweep, runs/NAME: sweep.json, which says what there is, and a folder for each
// cell with its result. Several processes may work in one.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/sweep/cell.h"
#include "app/sweep/table.h"
#include "common/file_lock.h"

namespace mw {

inline constexpr const char* sweep_schema = "meshwright.sweep/1";

// A lock of the sweep's folder, which is made if it is missing. Throws Error (environment).
FileLock sweep_lock(const std::filesystem::path& file, bool wait = false);

// What sweep.json says of a cell.
struct CellState {
  // queued, running, done, failed, skipped, refused, predicted
  std::string status = "queued";
  std::string reason;
  double seconds = 0;
};

class SweepFolder {
 public:
  // Makes no folder yet.
  explicit SweepFolder(std::string path);

  const std::string& path() const { return path_; }
  // A cell's folder: the one that has its hash, or else the one that it would get.
  std::string of(const Cell& cell, const std::string& hash) const;
  // A cell's result; nothing if there is none, or one of another experiment.
  std::optional<Json> result(const Cell& cell, const std::string& hash) const;

  // Makes a cell's folder, empty. What a run left there that came to no end, or that is to be run
  // again, goes to PATH/.earlier; `earlier` gets its place, if it is not null. The cell's lock is
  // held.
  std::string fresh(const Cell& cell, const std::string& hash,
                    std::string* earlier = nullptr) const;
  // Makes `earlier`, to which fresh() has moved a folder, the cell's folder again. The folder that
  // is the cell's now goes to PATH/.earlier.
  void put_back(const Cell& cell, const std::string& hash, const std::string& earlier) const;
  // Removes what the cell's runs before its last one have left in PATH/.earlier.
  void forget_earlier(const std::string& hash) const;
  std::string lock_of(const std::string& hash) const;

  // Replaces sweep.json. What other processes know of cells that are not `mine` stays; so does what
  // is more than a prediction. `more`: further keys of the file.
  void write_index(const SweepTable& sweep, const std::string& script,
                   const std::vector<Cell>& cells, const std::vector<Planned>& planned,
                   const std::vector<CellState>& states, const std::vector<bool>& mine,
                   const Json& more) const;

 private:
  void look_up();
  // returns where to; empty: there is no such folder
  std::string move_aside(const std::filesystem::path& folder) const;

  std::string path_;
  std::map<std::string, std::string> known_;  // hash -> name of its folder
};

// Replaces a file whole. Throws Error (environment).
void replace_file(const std::filesystem::path& file, const std::string& text);

}  // namespace mw
