// The table of mw.sweep { … }, and the options of `sweep:go { … }` and the command `sweep`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/json.h"
#include "meshwright/options.h"

namespace mw {

const Options& sweep_options();
const Options& go_options();

struct SweepTable {
  std::string name;
  Json base, over;   // checked by check_grid() (sweep/grid.h)
  Json skip;         // a function, or null
  std::string like;  // `same_loss_as`: a cell's name, or a value of an axis; empty: not asked for
  std::optional<double> tolerance;
  std::string baseline;  // a cell's name or a value of an axis; empty: `like`, or the first cell
  int repeats = 1;
  bool same_seed = false;  // repeats have the same seed
  bool predict = false;

  std::string folder() const { return "runs/" + name; }
};

// Reads the table of a sweep. Adds all that is wrong with it, the grid too, as problems with keys
// such as "over.recompute[2]".
SweepTable read_sweep(const Json& table, Problems& problems);

// What one call of `go` is to do.
struct GoOptions {
  int workers = 0;                // 0: as many as memory and cores take
  std::vector<std::string> only;  // patterns of cells; empty: all
  std::string retry;              // results to run again: "failed", "disturbed", "all"; empty: none
  std::int64_t order = 1;         // seed of the order in which cells run; 0: that of the grid
  int reruns = 2;                 // reruns of a cell that other programs disturbed, at most
  double time = 0;                // seconds that a cell may take; 0: no limit
  std::int64_t memory = 0;        // bytes that a cell's process may allocate; 0: no limit
  int shard = 0, shards = 0;      // this one of so many, counted from 1; 0: not sharded
  bool dry = false, predict = false, quiet = false;
  std::string print;  // "sbatch": print a job script instead; or empty
};

// Reads the options `given` by the script. Those of the command line, in `command`, outweigh them.
GoOptions read_go(const Json& given, const Json& command);

}  // namespace mw
