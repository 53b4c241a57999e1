// A cell of a sweep: one experiment of the grid, and what is known of it before it runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

struct CellValue {
  std::string key;     // the axis: "plan", "model.layers", or a name for several keys
  std::string text;    // as people read it: "zero(8, stage=3)"
  Json value;          // value of an axis that is one key; null: the axis has several keys
  bool shown = false;  // the cell's name has the text alone, without the key
};

struct Cell {
  std::string name;  // made of all values: "dp(8) seed=1"; no two cells have the same
  std::vector<CellValue> values;
  Json table;           // table of the experiment, as a script would have written it
  std::string skipped;  // why the cell is not run; empty: it is
  std::string repeats;  // Planned::hash_without_seed, once it is planned; equal for repeats
  int repeat = 0;       // which of several runs of one experiment; 0: there is one

  const std::string* text_of(const std::string& key) const {
    for (const CellValue& value : values) {
      if (value.key == key) return &value.text;
    }
    return nullptr;
  }
  // The texts of all values: { key = text, … }
  Json texts() const {
    Json all = Json::object();
    for (const CellValue& value : values) all[value.key] = value.text;
    return all;
  }
};

// A cell's experiment, read and planned.
struct Planned {
  // Experiment::hash, with the number of the repeat where there are several: "….2"
  std::string hash;
  std::string hash_without_seed;
  std::string mix, precision;
  std::int64_t ranks = 0, steps = 0;
  std::int64_t memory = 0;     // bytes that all ranks together are predicted to hold
  std::int64_t peak = 0;       // bytes that the fullest rank is predicted to hold
  int cores = 1;               // cores that its ranks keep busy
  double step_seconds = 0;     // predicted
  std::vector<Problem> wrong;  // mistakes of the script, with which nothing was planned
  std::string refused, hint;   // the planner's reason; empty: it was planned
  // faults of plugins that were only tried (engine/plugin_faults.h)
  std::vector<std::string> faults;
  Json prediction;  // the `plan` object, where it was asked for

  double beside_seconds = 0;     // predicted seconds of evaluations and checkpoints
  std::int64_t file_bytes = 0;   // approximate bytes of its run file and checkpoints
  std::int64_t trace_bytes = 0;  // bytes that traced steps add, if it traces steps

  double seconds() const { return step_seconds * static_cast<double>(steps) + beside_seconds; }
  // The predicted seconds of the training and of the start of the cell's process.
  double whole_seconds() const { return seconds() + seconds_of_a_start; }
  static constexpr double seconds_of_a_start = 1;
};

}  // namespace mw
