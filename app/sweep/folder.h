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

namespace mw {

inline constexpr const char* sweep_schema = "meshwright.sweep/1";

// A lock that ends with the process that has it, and with a cell's process that was given it,
// however they end: nothing is left behind by a kill.
class Lock {
 public:
  Lock() = default;
  // Nothing if another process has it. Where the file system has no locks, everybody gets one.
  static std::optional<Lock> take(const std::filesystem::path& file, bool wait = false);
  ~Lock();
  Lock(Lock&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  Lock& operator=(Lock&& other) noexcept;
  int descriptor() const { return file_; }  // -1: there are no locks here

 private:
  explicit Lock(int file) : file_(file) {}
  int file_ = -1;
};

// What sweep.json says of a cell.
struct CellState {
  // queued, running, done, failed, skipped, refused, predicted
  std::string status = "queued";
  std::string reason;
  double seconds = 0;
};

class SweepFolder {
 public:
  // Nothing is made yet.
  explicit SweepFolder(std::string path);

  const std::string& path() const { return path_; }
  // A cell's folder: the one that has its hash, or else the one that it would get.
  std::string of(const Cell& cell, const std::string& hash) const;
  // Its result; nothing if there is none, or one of another experiment.
  std::optional<Json> result(const Cell& cell, const std::string& hash) const;

  // A cell's folder, empty: what a run that came to no end, or that is to be run again, left there
  // goes to PATH/.earlier, as `earlier` says if it is not null. The cell's lock is held.
  std::string fresh(const Cell& cell, const std::string& hash,
                    std::string* earlier = nullptr) const;
  // Makes `earlier`, to which fresh() has moved a folder, the cell's folder again. The folder that
  // is the cell's now goes to PATH/.earlier.
  void put_back(const Cell& cell, const std::string& hash, const std::string& earlier) const;
  std::string lock_of(const std::string& hash) const;

  // Replaces sweep.json. What other processes know of cells that are not `mine` stays; so does what
  // is more than a prediction. `more`: further keys of the file.
  void write_index(const SweepTable& sweep, const std::string& script,
                   const std::vector<Cell>& cells, const std::vector<Planned>& planned,
                   const std::vector<CellState>& states, const std::vector<bool>& mine,
                   const Json& more) const;

 private:
  void look_up();
  std::string move_aside(const std::filesystem::path& folder) const;  // where to; empty: none there

  std::string path_;
  std::map<std::string, std::string> known_;  // hash -> name of its folder
};

// replace_whole(). Throws Error (environment).
void replace_file(const std::filesystem::path& file, const std::string& text);

}  // namespace mw
