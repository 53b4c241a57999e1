// Writes the tables of a sweep, and the job script that runs it on a cluster.
#include "app/sweep/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/progress.h"
#include "app/sweep/judge.h"
#include "app/texts.h"
#include "common/process.h"
#include "common/statistics.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "record/groups.h"

namespace mw {
namespace {

std::optional<double> number_in(const Json& row, const char* key) {
  if (!row.contains(key) || !row[key].is_number()) return std::nullopt;
  return row[key].get<double>();
}

std::optional<double> loss_of(const Json& row) {
  if (!row.contains("losses") || !row["losses"].is_array() || row["losses"].empty() ||
      !row["losses"].back().is_number())
    return std::nullopt;
  return row["losses"].back().get<double>();
}

Json spread_json(const MeanAndDeviation& spread) {
  return {{"n", spread.n}, {"mean", spread.mean}, {"deviation", spread.deviation}};
}

}  // namespace

std::string short_result(const Json& row) {
  std::string text;
  if (const auto loss = loss_of(row)) text = fmt::format("loss {:.4f}", *loss);
  if (const auto speed = number_in(row, "tokens_per_second"))
    text += fmt::format("{}{} tokens/s", text.empty() ? "" : "  ", format_count(*speed));
  if (row.contains("reason") && row["reason"].is_string()) {
    std::string reason = row["reason"].get<std::string>();
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    text = reason;
  }
  return text;
}

Json verdict_json(const SweepTable& sweep, const std::vector<Cell>& cells,
                  const std::vector<Json>& rows) {
  const ReportGroups found = group_cells(runs_of(sweep, cells, rows));
  if (found.groups.size() < 2) return {};
  Json json = {{"kind", "verdict"}};
  json.update(found.answer_json(/*numbers=*/false));
  return json;
}

std::string summary_text(const SweepTable& sweep, const std::vector<Cell>& cells,
                         const std::vector<Json>& rows) {
  const ReportGroups found = group_cells(runs_of(sweep, cells, rows));
  Json groups = Json::array();
  for (const ReportGroup& group : found.groups) {
    const bool compared =
        std::isfinite(group.delta) && group.baseline != static_cast<int>(groups.size());
    groups.push_back(
        {{"name", group.name},
         {"cells", group.cells},
         {"loss", spread_json(group.loss)},
         {"speed", std::isfinite(group.speed()) ? speed_text(group, format_count) : "-"},
         {"peak", spread_json(group.peak.n > 0 ? group.peak : group.predicted_peak)},
         {"delta", compared ? Json(group.delta) : Json()},
         {"others", number_or_null(group.others)},
         {"disturbed", group.disturbed},
         {"measured", group.interval.known()},
         {"wide", group.interval.known() && std::isnan(group.half())}});
  }
  return from_library("sweep", {{"name", sweep.name},
                                {"folder", sweep.folder()},
                                {"rows", rows},
                                {"groups", groups},
                                {"verdict", found.answer()}});
}

std::string SweepCost::text() const {
  const double seconds = starts + trainings;
  std::string text =
      fmt::format("predicted {} one after the other: {} of steps and {} of starts",
                  format_duration(seconds), format_duration(trainings), format_duration(starts));
  if (cells > 1 && reruns > 0)
    text += fmt::format("; up to {} if other programs disturb every cell, which runs again then",
                        format_duration(seconds * (1 + reruns)));
  return text + fmt::format("; about {} of files", format_bytes(static_cast<double>(bytes)));
}

std::string dry_text(const SweepTable& sweep, const std::vector<Cell>& cells,
                     const std::vector<Planned>& planned, const std::vector<Json>& rows,
                     const SweepCost& cost) {
  Json listed = Json::array();
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const Planned& p = planned[i];
    listed.push_back({{"name", cells[i].name},
                      {"ranks", p.ranks},
                      {"step_seconds", p.step_seconds},
                      {"duration", format_duration(p.seconds())},
                      {"peak", p.peak},
                      {"memory", p.memory}});
  }
  return from_library("sweep", {{"name", sweep.name},
                                {"planned", listed},
                                {"rows", rows},
                                {"queued", cost.cells},
                                {"cost", cost.text()}});
}

std::string sbatch_text(const SweepTable& sweep, const GoOptions& go, const SlurmJob& job) {
  Json arguments = Json::array();
  for (const std::string& word : job.arguments) arguments.push_back(shell_word(word));
  return from_library("sbatch", {{"name", sweep.name},
                                 {"cells", job.cells},
                                 {"seconds", format_duration(job.seconds)},
                                 {"time", go.time},
                                 {"cores", job.cores},
                                 {"memory", job.memory},
                                 {"folder", shell_word(job.folder)},
                                 {"program", shell_word(job.program)},
                                 {"script", shell_word(job.script)},
                                 {"arguments", arguments}});
}

}  // namespace mw
