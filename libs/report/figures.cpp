// Collects the data of figures for papers, and lets Python draw them.
#include "report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "common/python.h"
#include "draw/timeline.h"
#include "meshwright/engine/text.h"
#include "record/groups.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

void put(Json& row, const char* key, double value) {
  if (std::isfinite(value)) row[key] = value;
}

Json means_of(const std::map<std::string, MeanAndDeviation>& spreads) {
  Json means = Json::object();
  for (const auto& [name, spread] : spreads)
    if (spread.mean > 0) means[name] = spread.mean;
  return means;
}

// Lists the stages, each with its name, its memory and its step by parts.
Json stages_of(const ReportCell& cell) {
  std::map<int, Json> stages;
  for (const auto& [stage, parts] : cell.predicted_stage_parts) stages[stage]["parts"] = parts;
  for (const auto& [stage, parts] : cell.parts) stages[stage]["measured_parts"] = parts;
  for (const auto& [stage, memory] : cell.stage_memory) stages[stage]["memory"] = memory;
  Json list = Json::array();
  for (auto& [stage, facts] : stages) {
    facts["name"] = fmt::format("stage {}", stage);
    list.push_back(std::move(facts));
  }
  return list;
}

Json row_of(const ReportGroup& group, const std::vector<ReportCell>& cells) {
  const bool predicted = group.tokens_per_second.n == 0;
  Json row = {{"name", group.name},
              {"own_name", group.own_name},
              {"values", Json::object()},
              {"verdict", name_of(group.verdict)},
              {"predicted", predicted},
              {"on_edge", group.on_edge},
              {"memory", means_of(predicted ? group.predicted_memory : group.memory)},
              {"bytes", means_of(predicted ? group.predicted_bytes : group.bytes)},
              {"losses", Json::array()},
              {"held_out_losses", Json::array()}};
  for (const auto& [key, value] : group.values) row["values"][key] = value;
  if (!predicted) {
    row["runs"] = group.ran;
    row["speed_runs"] = group.tokens_per_second.n;
  }
  put(row, "tokens_per_second", group.speed());
  put(row, "half", group.speed() * group.half());
  put(row, "step_seconds", predicted ? group.predicted_step.mean : group.step_seconds.mean);
  put(row, "peak_bytes", group.memory_needed());
  put(row, "mfu", predicted ? cells[group.cells.front()].mfu : group.mfu.mean);
  // No mean loss is shown if the loss of one of the runs is not finite.
  if (group.loss.n == group.ran) put(row, "loss", group.loss.mean);
  int ranks = 0;
  for (const std::size_t c : group.cells) {
    const ReportCell& cell = cells[c];
    ranks = std::max(ranks, cell.ranks);
    if (!cell.fits) row["verdict"] = "does not fit";
    if (group.ran > 0 && !cell.done()) continue;  // the mean loss is over these runs too
    if (!cell.losses.empty()) row["losses"].push_back(cell.losses);
    const auto held = cell.series.find("held_out_loss");
    if (held != cell.series.end()) row["held_out_losses"].push_back(held->second);
  }
  if (ranks > 0) row["ranks"] = ranks;
  const ReportCell* of = cell_with_parts(group, cells);
  if (of == nullptr) of = &cells[group.cells.front()];
  row["parts"] = of->predicted_parts;
  row["measured_parts"] = mean_parts(of->parts);
  row["stages"] = stages_of(*of);
  return row;
}

// The timelines of the fastest mix, or of the first one that was measured. Null: there is none.
Json timeline_of(const ReportRuns& runs, const ReportGroups& found) {
  const ReportCell* cell = nullptr;
  if (found.fastest >= 0)
    cell = &runs.cells[found.groups[static_cast<std::size_t>(found.fastest)].cells.front()];
  for (const ReportCell& one : runs.cells)
    if (cell == nullptr && one.measured()) cell = &one;
  Json timeline = cell == nullptr ? Json() : timeline_of_run(cell->file);
  if (timeline.is_object()) timeline["name"] = cell->name;
  return timeline;
}

}  // namespace

Json figure_data(const std::vector<fs::path>& paths, const std::vector<std::string>& of_run) {
  const ReportRuns runs = find_report_runs(paths, of_run);
  const ReportGroups found = group_cells(runs);
  Json data = {{"rows", Json::array()}, {"works", Json::array()}, {"axes", runs.axes}};
  for (const ReportGroup& group : found.groups) {
    Json work = Json::object();
    for (const auto& [key, value] : group.work) work[key] = value;
    Json& works = data["works"];
    const auto known = std::find(works.begin(), works.end(), work);
    const auto at = known - works.begin();
    if (known == works.end()) works.push_back(std::move(work));
    data["rows"].push_back(row_of(group, runs.cells));
    data["rows"].back()["work"] = at;
  }
  data["timeline"] = timeline_of(runs, found);
  return data;
}

Json draw_figures(const Json& request) {
  return answer_of({.name = "meshwright_figures",
                    .asked_by = "--figures",
                    .does = "draws figures",
                    .needs = "python3, numpy and matplotlib"},
                   request);
}

}  // namespace mw
