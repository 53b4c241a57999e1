// Files that the program itself reads: the folder of a sweep, and what `calibrate --from` is given.
#include "app/calibrate/calibrate.h"
#include "app/sweep/conductor.h"
#include "app/sweep/folder.h"
#include "app/sweep/judge.h"
#include "app/sweep/summary.h"
#include "common/files.h"
#include "common/run_timing.h"
#include "fuzz/readers.h"
#include "meshwright/error.h"

namespace mw::fuzz {
namespace {

Cell cell_of(const std::string& plan) {
  Cell cell;
  cell.name = plan;
  cell.values = {{"plan", plan, Json(plan), true}};
  cell.table = {{"batch", 4}};
  return cell;
}

// A line each: the results of two cells; then the list of cells.
void read_cells(Bytes input) {
  clear_scratch();
  std::string text = text_of(input);
  for (const char* file : {"sweep/a-1/result.json", "sweep/b-2/result.json"})
    file_of(file, take_line(text));
  const std::filesystem::path list = file_of("sweep/sweep.json", text);
  const SweepFolder folder((scratch_folder() / "sweep").string());
  SweepTable sweep;
  sweep.name = "sweep";
  sweep.like = "a";
  const std::vector<Cell> cells = {cell_of("a"), cell_of("b")};
  std::vector<Planned> planned(cells.size());
  std::vector<Json> rows;
  std::vector<CellState> states;
  for (std::size_t k = 0; k < cells.size(); ++k) {
    planned[k].hash = std::to_string(k + 1);
    const auto found = folder.result(cells[k], planned[k].hash);
    rows.push_back(found ? row_of_result(sweep, cells[k], *found, true)
                         : bare_row(sweep, cells[k], planned[k], {}));
  }
  const auto trained = [](const Json& row) { return row.value("trained", false); };
  const Json* reference = trained(rows[0]) ? &rows[0] : nullptr;
  if (trained(rows[1])) judge(rows[1], "a", reference, "", loss_bound("fp32"));
  for (const Json& row : rows) {
    states.push_back(state_of(row));
    disturbance_text(read_timing(row));
    short_result(row);
  }
  json_text(verdict_json(sweep, cells, rows));
  summary_text(sweep, cells, rows);
  folder.write_index(sweep, "a.lua", cells, planned, states, {true, false}, Json::object());
  must(read_json(list)["cells"].size() == cells.size(), "cells are not in the list");
}

void read_measured_steps(Bytes input) {
  const std::string file = file_of("steps/steps.json", text_of(input)).string();
  file_of("steps/mine.lua", "");
  Problems problems;
  for (const Json& step : read_steps(file, text_of(input), problems))
    must(step["seconds"] > 0 && step["nodes"] > 0, "a step took no time, or nowhere");
  problems.throw_if_any();
}

const AddReader registered_cells({"cells", read_cells, 200});
const AddReader registered_steps({"measured_steps", read_measured_steps, 600});

}  // namespace
}  // namespace mw::fuzz
