// Makes rows of figures: a row for each mix of runs and sweeps, and for each plan that plan or
// search wrote with --json.
#include "report/figure_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <system_error>

#include "common/files.h"
#include "common/run_timing.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

std::string stage_name(const Json& stage) {
  return fmt::format("stage {}", count_under(stage, "stage"));
}

void take_stages(PaperRow& row, const Json& prediction) {
  for (const Json& stage : prediction.value("stages", Json::array()))
    row.stages.emplace_back(stage_name(stage), step_parts(stage));
  for (const Json& stage : prediction.value("memory", Json::array())) {
    Parts parts;
    for (const auto& [name, bytes] : stage.items())
      if (bytes.is_number() && name != "stage" && name != "device_memory" &&
          bytes.get<double>() > 0)
        parts[name] = bytes.get<double>();
    row.stage_memory.emplace_back(stage_name(stage), parts);
  }
}

void take_work(PaperRow& row, const std::vector<std::pair<std::string, std::string>>& work) {
  for (const auto& [key, value] : work) {
    const std::string line = key + "=" + value + "\n";
    row.work += line;
    if (key != "batch" && !key.starts_with("data")) row.work_but_batch += line;
  }
}

PaperRow row_of_prediction(const std::string& name, const Json& prediction) {
  ReportCell cell;
  take_prediction(cell, prediction);
  PaperRow row;
  take_work(row, cell.work);
  row.name = name;
  row.predicted = true;
  row.counted = cell.fits;
  if (!cell.fits) row.uncounted = "does not fit";
  row.ranks = cell.ranks;
  row.speed = cell.tokens_per_second.predicted;
  row.step = cell.step_seconds.predicted;
  row.peak = number_under(prediction, "peak_bytes");
  row.mfu = number_under(prediction, "mfu");
  row.step_parts = step_parts(prediction);
  for (const auto& [category, bytes] : cell.memory)
    if (bytes.predicted > 0) row.memory[category] = bytes.predicted;
  for (const auto& [axis, bytes] : cell.bytes) row.bytes[axis] = bytes.predicted;
  take_stages(row, prediction);
  return row;
}

// `work`: a name for what all plans of the search compute.
void take_search(const Json& found, const std::string& work, std::vector<PaperRow>& rows) {
  std::set<std::string> seen;
  for (const char* list : {"best", "edge", "checked"}) {
    for (const Json& one : found.value(list, Json::array())) {
      std::string name = fmt::format("{}, microbatch {}", one.value("plan", "?"),
                                     one.value("microbatch", Json()).dump());
      for (const char* key : {"recompute", "offload"}) {
        const Json value = one.value(key, Json("none"));
        if (value != "none")
          name += fmt::format(", {} {}", key,
                              value.is_string() ? value.get<std::string>() : value.dump());
      }
      if (!seen.insert(name).second) continue;
      rows.push_back(row_of_prediction(name, one.value("predicted", Json::object())));
      rows.back().work = rows.back().work_but_batch = work;
    }
  }
}

// Adds the plans of a file that holds a result of plan or search on each line.
void take_results(const fs::path& path, std::vector<PaperRow>& rows) {
  const std::size_t before = rows.size();
  int searches = 0;
  for (const Json& result : lines_of_json(path)) {
    const std::string kind = result.value("kind", "");
    if (kind == "search")
      take_search(result, fmt::format("search={} {}\n", path.string(), ++searches), rows);
    if (kind == "plan") rows.push_back(row_of_prediction(result.value("name", "plan"), result));
  }
  if (rows.size() > before) return;
  std::error_code error;
  const bool there = fs::exists(path, error);
  throw Error(Stage::options, there ? "file.format" : "file.missing", "",
              fmt::format("report --figures: {}: {}", path.string(),
                          there ? "it holds no result of plan or search" : "there is no such file"),
              "write one: meshwright plan SCRIPT --json > FILE; a run is given by its run file, a "
              "sweep by its folder");
}

Parts means_of(const std::map<std::string, MeanAndDeviation>& spreads) {
  Parts parts;
  for (const auto& [name, spread] : spreads)
    if (spread.mean > 0) parts[name] = spread.mean;
  return parts;
}

// The mean of several curves, at the steps that all of them have.
Curve mean_curve(const std::vector<const Curve*>& curves) {
  std::map<std::int64_t, std::pair<double, std::size_t>> sums;
  for (const Curve* curve : curves) {
    for (const auto& [step, value] : *curve) {
      sums[step].first += value;
      ++sums[step].second;
    }
  }
  Curve mean;
  for (const auto& [step, sum] : sums)
    if (sum.second == curves.size())
      mean.emplace_back(step, sum.first / static_cast<double>(sum.second));
  return mean;
}

void take_parts(PaperRow& row, const ReportGroup& group, const std::vector<ReportCell>& cells) {
  const ReportCell* of = cell_with_parts(group, cells);
  if (of == nullptr) return;
  row.step_parts = of->predicted_parts;
  row.measured_parts = mean_parts(of->parts);
  for (const auto& [stage, parts] : of->parts)
    row.measured_stages.emplace_back(fmt::format("stage {}", stage), parts);
  for (const auto& [stage, parts] : of->predicted_stage_parts)
    row.stages.emplace_back(fmt::format("stage {}", stage), parts);
}

PaperRow row_of_group(const ReportGroup& group, const std::vector<ReportCell>& cells) {
  PaperRow row;
  row.name = group.name;
  row.predicted = group.tokens_per_second.n == 0;
  row.counted = group.verdict == GroupVerdict::right || group.verdict == GroupVerdict::predicted;
  if (!row.counted) row.uncounted = name_of(group.verdict);
  row.runs = group.tokens_per_second.n;
  row.speed = group.speed();
  row.step = row.predicted ? group.predicted_step.mean : group.step_seconds.mean;
  row.peak = group.memory_needed();
  row.mfu = group.mfu.mean;
  row.loss = group.loss.mean;
  if (group.interval.known()) row.half = row.speed * group.half();
  row.memory = means_of(row.predicted ? group.predicted_memory : group.memory);
  row.bytes = means_of(row.predicted ? group.predicted_bytes : group.bytes);
  take_work(row, group.work);
  std::vector<const Curve*> losses, held_out;
  for (const std::size_t c : group.cells) {
    const ReportCell& cell = cells[c];
    row.ranks = std::max(row.ranks, cell.ranks);
    if (!cell.losses.empty()) losses.push_back(&cell.losses);
    const auto held = cell.series.find("held_out_loss");
    if (held != cell.series.end()) held_out.push_back(&held->second);
  }
  row.losses = mean_curve(losses);
  row.held_out = mean_curve(held_out);
  take_parts(row, group, cells);
  return row;
}

// The lines of a work that not all works have.
std::string differing(const std::string& work, const std::vector<std::string>& all) {
  std::vector<std::string> lines;
  std::istringstream text(work);
  for (std::string line; std::getline(text, line);) {
    const bool shared = std::all_of(all.begin(), all.end(), [&](const std::string& other) {
      return ("\n" + other).find("\n" + line + "\n") != std::string::npos;
    });
    if (shared) continue;
    lines.push_back(line.starts_with("model.") ? line.substr(6) : line);
  }
  constexpr std::size_t most = 2;  // a figure is narrow
  if (lines.size() > most) lines.resize(most);
  return join(lines);
}

// Adds to names what tells rows apart that are not to be compared.
void complete_names(std::vector<PaperRow>& rows) {
  std::vector<std::string> works;
  bool measured = false, predicted = false;
  for (const PaperRow& row : rows) {
    (row.predicted ? predicted : measured) = true;
    if (std::find(works.begin(), works.end(), row.work) == works.end()) works.push_back(row.work);
  }
  for (PaperRow& row : rows) {
    std::vector<std::string> more;
    if (works.size() > 1) more.push_back(differing(row.work, works));
    if (measured && predicted) more.emplace_back(row.predicted ? "predicted" : "measured");
    std::erase(more, "");
    row.kind = join(more);
    if (!row.counted) more.push_back(row.uncounted);
    if (!more.empty()) row.name += fmt::format(" ({})", join(more));
  }
}

}  // namespace

bool ranked_together(const PaperRow& a, const PaperRow& b) {
  return a.work == b.work && a.predicted == b.predicted;
}

PaperRows paper_rows(const std::vector<fs::path>& inputs, const std::vector<std::string>& of_run) {
  PaperRows made;
  std::vector<fs::path> paths;
  for (const fs::path& input : inputs) {
    const std::string ending = input.extension().string();
    if (ending == ".json" || ending == ".jsonl") {
      take_results(input, made.rows);
    } else {
      paths.push_back(input);
    }
  }
  if (!paths.empty()) {
    made.runs = find_report_runs(paths, of_run);
    made.groups = group_cells(made.runs);
    for (const ReportGroup& group : made.groups.groups)
      made.rows.push_back(row_of_group(group, made.runs.cells));
  }
  complete_names(made.rows);
  return made;
}

}  // namespace mw
