// The rows of a run file that a run takes over from the one that it goes on from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "record/rows.h"
#include "record/run_reader.h"
#include "record/table.h"

namespace mw {

struct EarlierRows {
  std::vector<StepRow> steps;  // in order, each once
  // For the other tables that have a row for each of many things of a step: packed.
  std::vector<std::pair<const TableLayout*, std::vector<char>>> tables;
  std::vector<std::int64_t> series_steps;
  std::vector<Series> series;
  double seconds = 0;  // from when that file was made to its last event
};

// Those of steps before `step`. Nothing, where there is no run file or it belongs to none of these
// experiments (hashes).
EarlierRows read_earlier(const std::filesystem::path& path, std::int64_t step,
                         const std::vector<std::string>& hashes);

}  // namespace mw
