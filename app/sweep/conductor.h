// Runs cells as processes, some at a time, and gathers what becomes of them.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "app/sweep/child.h"
#include "app/sweep/folder.h"

namespace mw {

struct Conduct {
  const SweepTable& sweep;
  const GoOptions& go;
  const std::vector<Cell>& cells;
  const std::vector<Planned>& planned;
  const std::vector<Json>& before;  // results that new runs are to replace; else null
  SweepFolder& folder;
  std::function<void()> changed;  // called when states have changed, to write sweep.json
  std::function<void(std::size_t cell)> ended;  // called when a cell's row is there
  std::function<void(const std::string&)> say;  // tells people a line
  // Writes the files of a cell's folder, and returns the arguments of its process.
  std::function<std::vector<std::string>(std::size_t cell, const std::string& folder)> prepare;
};

class Conductor {
 public:
  Conductor(const Conduct& conduct, std::vector<Json>& rows, std::vector<CellState>& states,
            std::vector<bool>& mine);
  ~Conductor();  // kills what still runs
  Conductor(const Conductor&) = delete;
  Conductor& operator=(const Conductor&) = delete;

  // Runs cells in this order. If `wait`, waits for cells that another process has. If the user
  // wishes to stop, throws Stopped when all processes have ended.
  void run(std::vector<std::size_t> cells, bool wait);

 private:
  struct Running {
    std::size_t cell = 0;
    pid_t process = -1;
    FileLock lock;
    double began = 0, asked_to_end = 0;
    bool too_long = false;
    int beside = 1;  // the most cells that ran at a time meanwhile
    std::int64_t kills = 0;
    int turn = 0;  // its number among all cells that this process started, from 1 on
  };

  // The least disturbed run so far of a cell that runs again.
  struct Earlier {
    Json result;
    int reruns = 0;      // how often the cell was run again
    std::string folder;  // folder to which the run was moved; empty: it is in the cell's
  };

  bool admits(std::size_t cell) const;
  // Starts a cell's process. Returns false if another process has the cell.
  bool start(std::size_t cell);
  void look(Running& running);
  void take_end(Running& running, int status);
  Json result_of(const Running& running, int status, bool& from_outside) const;
  // Whether the run was disturbed by other programs and its cell is to run again.
  bool runs_again(const Running& running, const Json& result) const;
  // Keeps the run of the cell that was disturbed least; the others' folders are in .earlier until
  // the cell is done.
  void keep_quietest(std::size_t cell, Json& result);
  void end_all();
  void show();
  double seconds_left() const;

  const Conduct& conduct_;
  std::vector<Json>& rows_;
  std::vector<CellState>& states_;
  std::vector<bool>& mine_;
  std::vector<std::size_t> waiting_, elsewhere_;
  std::vector<Running> running_;
  std::map<std::size_t, Earlier> earlier_;  // by cell
  std::size_t all_ = 0, done_ = 0, failed_ = 0;
  int turns_ = 0;
  // locks of which people know that nobody here can check their holders
  std::set<std::filesystem::path> unsure_;
  double measured_ = 0, predicted_ = 0;  // seconds of cells that have ended
  double shown_at_ = 0, looked_elsewhere_ = 0;
  bool rewrites_ = false, line_open_ = false;
};

// The row of a cell without a result: the cell and its state.
Json bare_row(const SweepTable& sweep, const Cell& cell, const Planned& planned,
              const CellState& state);
// The row of a cell with a result, which was found (`reused`) or has come.
Json row_of_result(const SweepTable& sweep, const Cell& cell, const Json& result, bool reused);
// What sweep.json says of a cell with this row.
CellState state_of(const Json& row);

}  // namespace mw
