// Finds the runs of a report, reads the settings of their sweeps, and finds the settings in which
// runs without a sweep differ.
#include "record/cells.h"

#include <fmt/format.h>
#include <cmath>

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include "common/files.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "record/run_result.h"
#include "record/run_set.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// A value as people read it; empty for null.
std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "";
  if (value.is_number_float()) return format_number(value.get<double>());
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The text under a key; empty if there is none.
std::string text_at(const Json& json, const char* key) {
  return json.is_object() && json.contains(key) ? text_of(json[key]) : "";
}

// Nested tables as "a.b", with their texts.
void flatten(const std::string& name, const Json& json,
             std::vector<std::pair<std::string, std::string>>& out) {
  if (!json.is_object()) {
    if (!name.empty()) out.emplace_back(name, text_of(json));
    return;
  }
  for (const auto& [key, value] : json.items())
    flatten(name.empty() ? key : name + "." + key, value, out);
}

// Sets the cell's settings, and the key that is equal for repeats.
void take_settings(ReportCell& cell, Json settings, const std::string& repeats,
                   const std::vector<std::string>& of_run) {
  if (settings.is_object()) {
    settings.erase("seed");
    for (const std::string& key : of_run) settings.erase(key);
  }
  cell.settings = settings.dump(-1, ' ', false, Json::error_handler_t::replace);
  cell.repeats = repeats.empty() ? cell.settings : repeats;
}

void take_facts(ReportCell& cell, const RunFacts& facts, const std::vector<std::string>& of_run) {
  cell.mix = facts.head.mix();
  take_settings(cell, facts.experiment.is_object() ? facts.experiment : facts.head.plan,
                facts.head.hash_without_seed, of_run);
  cell.work = work_of(facts.experiment);
  cell.ranks = std::max(count_under(facts.head.plan, "ranks"), facts.ranks);
  cell.steps = static_cast<std::int64_t>(facts.steps.size());
  for (const StepRow& step : facts.steps) cell.losses.emplace_back(step.step, step.loss);
  if (!facts.steps.empty()) cell.loss = facts.steps.back().loss;
  cell.step_seconds = facts.step_seconds;
  if (const double seconds = number_under(facts.predicted_result, "step_seconds"); seconds > 0)
    cell.step_seconds.predicted = seconds;
  cell.tokens_per_second.measured = facts.tokens_per_second;
  if (!facts.steps.empty() && cell.step_seconds.predicted > 0) {
    cell.tokens_per_second.predicted =
        static_cast<double>(facts.steps.back().tokens) / cell.step_seconds.predicted;
  }
  cell.timing = read_timing(facts.result);
  cell.parting = parting_of(facts.result, facts.predicted_result);
  if (const double flops = number_under(facts.predicted_result, "hardware_flops_per_step");
      flops > 0)
    cell.flops = flops;
  cell.predicted_parts = step_parts(facts.predicted_result);
  for (const Json& stage : facts.predicted_result.is_object()
                               ? facts.predicted_result.value("stages", Json::array())
                               : Json::array())
    cell.predicted_stage_parts[count_under(stage, "stage")] = step_parts(stage);
  cell.parts = facts.parts;
  cell.account = facts.account;
  cell.mfu = facts.mfu;
  cell.bubble = facts.bubble;
  cell.peak = facts.peak;
  cell.memory = facts.memory;
  cell.bytes = facts.bytes;
  cell.series = facts.series;
  const auto held_out = cell.series.find("held_out_loss");  // other names are users' metrics
  if (held_out != cell.series.end() && !held_out->second.empty())
    cell.held_out = held_out->second.back().second;
  if (!facts.head.host.empty()) cell.machine.emplace_back("host", facts.head.host);
  flatten("", facts.head.versions, cell.machine);
}

void take_machine(ReportCell& cell, const fs::path& folder) {
  const Json machine = read_json(folder / "machine.json");
  if (!machine.is_object()) return;
  cell.machine.clear();
  flatten("", machine, cell.machine);
}

// The report's cell of a run. If the run has values for axes that `axes` lacks, their keys are
// added to `axes`.
ReportCell cell_of(const RunEntry& entry, std::vector<std::string>& axes,
                   const std::vector<std::string>& of_run) {
  ReportCell cell;
  cell.name = cell.label = entry.name;
  cell.status = entry.status;
  cell.reason = entry.reason;
  cell.hash = entry.hash;
  cell.sweep = entry.sweep;
  cell.file = (entry.path.empty() ? entry.folder : entry.path).string();
  if (entry.readable()) {
    cell.seed = std::to_string(entry.seed);
    try {
      take_facts(cell, read_run_facts(entry.path, /*actions=*/false), of_run);
    } catch (const std::exception& error) {  // the file has changed, or is broken behind its head
      cell.status = "unreadable";
      cell.reason = error.what();
    }
  }
  for (const auto& [key, value] : entry.values) {
    take_value(cell, key, value);
    if (key != "seed" && key != "repeat" && std::find(axes.begin(), axes.end(), key) == axes.end())
      axes.push_back(key);
  }
  if (entry.folder.empty()) return cell;
  take_result(cell, read_json(entry.folder / "result.json"));
  take_machine(cell, entry.folder);
  return cell;
}

constexpr const char* predicted_file_name = "predicted.jsonl";

// The folders with a sweep.json: among the given folders, the folders in them, and the folders that
// hold the cells.
std::set<fs::path> sweep_folders(const std::vector<fs::path>& paths, const RunSet& set) {
  std::set<fs::path> folders;
  std::error_code error;
  const auto look = [&](const fs::path& folder) {
    if (fs::exists(folder / "sweep.json", error))
      folders.insert(fs::weakly_canonical(folder, error));
  };
  for (const fs::path& path : paths) {
    look(path);
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
      look(at->path());
  }
  for (const RunEntry& entry : set.runs)
    if (!entry.sweep.empty()) look(fs::path(entry.folder).parent_path());
  return folders;
}

// The rows of a predicted sweep, one for each cell; empty if there is no such file.
std::vector<Json> predicted_rows(const fs::path& folder) {
  return may_read(folder / predicted_file_name) ? lines_of_json(folder / predicted_file_name)
                                                : std::vector<Json>();
}

// Gives a sweep's cells that were not run the predictions in the sweep's folder.
void take_predictions(const fs::path& folder, const std::string& sweep, ReportRuns& runs) {
  std::map<std::string, Json> by_name;
  for (const Json& row : predicted_rows(folder)) by_name[text_at(row, "name")] = row;
  for (ReportCell& cell : runs.cells) {
    const auto row = by_name.find(cell.name);
    if (cell.sweep != sweep || cell.status != "predicted" || row == by_name.end()) continue;
    if (cell.hash.empty() || text_at(row->second, "hash") == cell.hash)
      take_result(cell, row->second);
  }
}

void take_sweep(const fs::path& folder, ReportRuns& runs) {
  const Json sweep = read_json(folder / "sweep.json");
  if (!sweep.is_object()) return;
  std::string name = text_at(sweep, "name");
  if (name.empty()) name = folder.filename().string();  // the name that find_runs() uses
  take_predictions(folder, name, runs);
  for (ReportCell& cell : runs.cells)
    if (cell.sweep == name) cell.held_to = text_at(sweep, "same_loss_as");
  runs.name += (runs.name.empty() ? "" : ", ") + name;
  if (runs.baseline.empty()) runs.baseline = text_at(sweep, "baseline");
  if (runs.same_loss_as.empty()) runs.same_loss_as = text_at(sweep, "same_loss_as");
  const auto ask = [&](const std::string& what, const std::string& text) {
    if (!text.empty()) runs.asked.emplace_back(what, text);
  };
  ask("sweep", name);
  ask("script", text_at(sweep, "script"));
  std::vector<std::string> order;
  if (sweep.contains("axes") && sweep["axes"].is_array()) {
    for (const Json& axis : sweep["axes"]) {
      const std::string key = text_at(axis, "key");
      std::vector<std::string> values;
      if (axis.is_object() && axis.contains("values") && axis["values"].is_array())
        for (const Json& value : axis["values"]) values.push_back(text_of(value));
      ask("over " + key,
          fmt::format("{}: {}", plural(static_cast<std::int64_t>(values.size()), "value"),
                      join(values)));
      order.push_back(key);
    }
  }
  std::stable_sort(runs.axes.begin(), runs.axes.end(), [&](const auto& a, const auto& b) {
    return std::find(order.begin(), order.end(), a) < std::find(order.begin(), order.end(), b);
  });
  ask("baseline", text_at(sweep, "baseline"));
  ask("loss compared with", text_at(sweep, "same_loss_as"));
  ask("begun", text_at(sweep, "created"));
  if (!sweep.contains("cells") || !sweep["cells"].is_array()) return;
  std::map<std::string, double> seconds;
  for (const Json& cell : sweep["cells"])
    if (const double took = number_under(cell, "seconds"); took > 0)
      seconds[text_at(cell, "name")] = took;
  for (ReportCell& cell : runs.cells) {
    if (const auto took = seconds.find(cell.name); cell.sweep == name && took != seconds.end())
      cell.seconds = took->second;
  }
}

// Moves the folders of sweeps that were predicted and never run from `given` to the result. Such a
// folder holds only the file of predictions.
std::vector<fs::path> predicted_alone(std::vector<fs::path>& given) {
  std::vector<fs::path> predicted;
  const auto alone = [](const fs::path& path) {
    std::error_code error;
    if (!fs::exists(path / predicted_file_name, error)) return false;
    return std::distance(fs::directory_iterator(path, error), {}) == 1 &&
           !predicted_rows(path).empty();
  };
  std::copy_if(given.begin(), given.end(), std::back_inserter(predicted), alone);
  std::erase_if(given, alone);
  return predicted;
}

// Adds the cells of a sweep that was predicted and never run.
void add_predicted(const fs::path& folder, ReportRuns& runs) {
  for (const Json& row : predicted_rows(folder)) {
    RunEntry entry;
    entry.name = text_at(row, "name");
    entry.status = text_at(row, "status");
    entry.reason = text_at(row, "reason");
    entry.hash = text_at(row, "hash");
    entry.sweep = text_at(row, "sweep");
    if (entry.sweep.empty()) entry.sweep = folder.filename().string();
    if (row.contains("values") && row["values"].is_object())
      for (const auto& [key, value] : row["values"].items())
        entry.values.emplace_back(key, text_of(value));
    ReportCell cell = cell_of(entry, runs.axes, {});
    take_result(cell, row);
    cell.file = (folder / predicted_file_name).string();
    runs.cells.push_back(std::move(cell));
  }
  const std::string& sweep = runs.cells.back().sweep;
  runs.name += (runs.name.empty() ? "" : ", ") + sweep;
  runs.asked.emplace_back("sweep", sweep);
}

// Adds a cell for a plan that was predicted and not run. `at`: a place that no other cell has.
ReportCell& add_plan(const std::string& name, const Json& prediction, const std::string& at,
                     ReportRuns& runs) {
  ReportCell& cell = runs.cells.emplace_back();
  cell.name = cell.label = name;
  cell.status = "predicted";
  cell.mix = text_at(prediction, "plan");
  take_prediction(cell, prediction);
  cell.file = cell.repeats = at;
  return cell;
}

void add_search(const Json& found, const std::string& at, ReportRuns& runs) {
  std::set<std::string> seen;
  for (const char* list : {"best", "edge", "checked"}) {
    for (const Json& one : found.value(list, Json::array())) {
      Json settings = Json::object();
      std::string name = text_at(one, "plan");
      for (const char* key : {"microbatch", "recompute", "offload"}) {
        const std::string value = text_at(one, key);
        if (value.empty() || value == "none") continue;
        settings[key] = value;
        name += fmt::format(", {} {}", key, value);
      }
      if (!seen.insert(name).second) continue;
      ReportCell& cell =
          add_plan(name, one.value("predicted", Json::object()), at + ": " + name, runs);
      cell.mix = text_at(one, "plan");
      cell.settings = settings.dump();
      cell.work = {{"search", at}};
    }
  }
}

void add_results(const fs::path& path, ReportRuns& runs) {
  const std::size_t before = runs.cells.size();
  int number = 0;
  for (const Json& result : lines_of_json(path)) {
    const std::string kind = text_at(result, "kind"),
                      at = fmt::format("{} {}", path.string(), ++number);
    if (kind == "search") add_search(result, at, runs);
    if (kind == "plan") add_plan(text_at(result, "name"), result, at, runs);
  }
  if (runs.cells.size() > before) return;
  std::error_code error;
  const bool there = fs::exists(path, error);
  throw Error(Stage::options, there ? "file.format" : "file.missing", "",
              fmt::format("report: {}: {}", path.string(),
                          there ? "it holds no result of plan or search" : "there is no such file"),
              "write one: meshwright plan SCRIPT --json > FILE; a run is given by its run file, a "
              "sweep by its folder");
}

// --- Settings in which runs without a sweep differ ---

// Gives the cells `which`, which are of no sweep, the values of keys in which their plans and
// experiments differ: at most `most` keys, and the mix.
void name_differences(ReportRuns& runs, const std::vector<std::size_t>& which) {
  constexpr std::size_t most = 4;
  std::vector<std::map<std::string, std::string>> all;
  std::map<std::string, std::set<std::string>> seen;
  for (const std::size_t c : which) {
    std::vector<std::pair<std::string, std::string>> flat;
    flatten("", json_in(runs.cells[c].settings), flat);
    all.emplace_back(flat.begin(), flat.end());
    for (const auto& [key, value] : flat) seen[key].insert(value);
  }
  std::vector<std::string> keys{"plan"};
  for (const auto& [key, values] : seen) {
    const bool plan = key == "plan" || key == "mix" || key == "ranks" || key == "schedule" ||
                      key.starts_with("axes.") || key.starts_with("plan");
    const bool differs =
        values.size() > 1 || std::any_of(all.begin(), all.end(), [&key = key](const auto& one) {
          return !one.empty() && one.count(key) == 0;
        });
    const auto longest = std::max_element(values.begin(), values.end(),
                                          [](auto& a, auto& b) { return a.size() < b.size(); });
    if (!plan && differs && longest->size() <= 40 && keys.size() <= most) keys.push_back(key);
  }
  for (const std::string& key : keys)
    if (std::find(runs.axes.begin(), runs.axes.end(), key) == runs.axes.end())
      runs.axes.push_back(key);
  for (std::size_t i = 0; i < which.size(); ++i) {
    ReportCell& cell = runs.cells[which[i]];
    for (const std::string& key : keys) {
      if (key == "plan") {
        cell.values.emplace_back(key, cell.mix);
      } else if (const auto found = all[i].find(key); found != all[i].end()) {
        cell.values.emplace_back(key, found->second);
      }
    }
  }
}

}  // namespace

std::vector<Json> lines_of_json(const fs::path& path) {
  std::vector<Json> rows;
  std::istringstream file(whole_file(path).value_or(""));
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) continue;
    if (rows.push_back(json_in(line)); rows.back().is_object()) continue;
    throw Error(Stage::options, "file.format", "",
                fmt::format("{}: line {} is no JSON: was the file cut off?", path.string(), number),
                "write it again: meshwright plan, search or sweep with --json, or sweep --predict");
  }
  return rows;
}

void take_result(ReportCell& cell, const Json& result) {
  if (!result.is_object()) return;
  const auto held = result.find("same_loss_as");
  if (held != result.end() && held->is_object() && held->contains("compared"))
    cell.compared = (*held)["compared"] == true;
  if (const int beside = count_under(result, "beside"); beside > 0) cell.beside = beside;
  const bool plan = result.contains("memory") && result["memory"].is_array();
  if (!cell.measured() && plan) take_prediction(cell, result);
  if (!cell.measured() && result.contains("predicted") && result["predicted"].is_object())
    take_prediction(cell, result["predicted"]);
}

void take_run(ReportCell& cell, const Json& result) {
  const Json losses = result.value("losses", Json());
  if (!losses.is_array() || losses.empty()) return;
  cell.steps = static_cast<std::int64_t>(losses.size());
  if (losses.back().is_number()) cell.loss = losses.back().get<double>();
  cell.step_seconds.measured = number_under(result, "step_seconds");
  cell.tokens_per_second.measured = number_under(result, "tokens_per_second");
  cell.peak.measured = number_under(result, "peak_bytes");
  cell.mfu = number_under(result, "mfu");  // replaces the predicted value
  cell.timing = read_timing(result);
  if (result.contains("experiment")) cell.work = work_of(result["experiment"]);
  if (result.contains("predicted"))
    if (const double flops = number_under(result["predicted"], "hardware_flops_per_step");
        flops > 0)
      cell.flops = flops;
}

void take_value(ReportCell& cell, const std::string& key, const std::string& value) {
  if (key != "seed" && key != "repeat") {
    cell.values.emplace_back(key, value);
    return;
  }
  cell.seed = value;
  const std::string word = " " + key + "=" + value;  // the part of the cell's name for this axis
  std::string words = " " + cell.label + " ";
  const std::size_t at = words.find(word + " ");
  if (at == std::string::npos) return;
  words.erase(at, word.size());
  cell.label = words.size() < 3 ? "base" : words.substr(1, words.size() - 2);
}

StepParts step_parts(const Json& prediction) {
  StepParts parts;
  for (const auto& [key, name] : {std::pair{"compute_seconds", "compute"},
                                  {"exposed_seconds", "exposed communication"},
                                  {"exposed_host_copy_seconds", "exposed host copies"},
                                  {"bubble_seconds", "bubble"}})
    if (const double seconds = number_under(prediction, key); seconds > 0) parts[name] = seconds;
  double rest = number_under(prediction, "step_seconds");
  for (const auto& [name, seconds] : parts) rest -= seconds;
  if (rest > 0 && !parts.empty())
    parts[prediction.contains("stages") && prediction["stages"].size() > 1 ? "bubble" : "other"] +=
        rest;
  return parts;
}

void take_prediction(ReportCell& cell, const Json& plan) {
  cell.step_seconds.predicted = number_under(plan, "step_seconds");
  cell.tokens_per_second.predicted = number_under(plan, "tokens_per_second");
  if (const double error = number_under(plan, "step_error"); error > 0) cell.step_error = error;
  cell.fits = !plan.contains("fits") || plan["fits"] != false;
  if (plan.contains("experiment") && cell.settings.empty()) {
    take_settings(cell, plan["experiment"], text_at(plan, "hash_without_seed"), {});
    cell.work = work_of(plan["experiment"]);
  }
  cell.ranks = std::max(cell.ranks, count_under(plan, "ranks"));
  cell.predicted_parts = step_parts(plan);
  for (const Json& stage : plan.value("stages", Json::array()))
    cell.predicted_stage_parts[count_under(stage, "stage")] = step_parts(stage);
  if (!cell.measured()) cell.mfu = number_under(plan, "mfu");
  if (plan.contains("memory") && plan["memory"].is_array()) {
    for (const Json& stage : plan["memory"]) {
      if (!stage.is_object()) continue;
      for (const auto& [name, bytes] : stage.items()) {
        if (!bytes.is_number() || name == "stage") continue;
        double& most = name == "peak" ? cell.peak.predicted : cell.memory[name].predicted;
        if (!(most >= bytes.get<double>())) most = bytes.get<double>();
        cell.stage_memory[count_under(stage, "stage")][name] = bytes.get<double>();
      }
    }
  }
  if (!plan.contains("communication") || !plan["communication"].is_array()) return;
  for (const Json& use : plan["communication"]) {
    if (!use.is_object()) continue;
    double& bytes = cell.bytes[text_at(use, "axis")].predicted;
    bytes = (std::isnan(bytes) ? 0 : bytes) + std::max(0.0, number_under(use, "bytes"));
  }
}

ReportRuns find_report_runs(const std::vector<fs::path>& paths,
                            const std::vector<std::string>& of_run) {
  std::vector<fs::path> given, results;
  for (const fs::path& path : paths) {
    const bool list = path.filename() == "sweep.json";
    if (!list && (path.extension() == ".json" || path.extension() == ".jsonl")) {
      results.push_back(path);
      continue;
    }
    given.push_back(!list ? path : path.has_parent_path() ? path.parent_path() : fs::path("."));
  }
  const std::vector<fs::path> predicted = predicted_alone(given);
  RunSet set;
  if (!given.empty()) set = find_runs(given);
  ReportRuns runs;
  for (const RunEntry& entry : set.runs) runs.cells.push_back(cell_of(entry, runs.axes, of_run));
  for (const fs::path& folder : predicted) add_predicted(folder, runs);
  for (const fs::path& path : results) add_results(path, runs);
  const bool sweep = std::any_of(runs.cells.begin(), runs.cells.end(),
                                 [](const ReportCell& cell) { return !cell.sweep.empty(); });
  const bool none = std::all_of(runs.cells.begin(), runs.cells.end(),
                                [](const ReportCell& cell) { return cell.status == "unreadable"; });
  if (!sweep && none) {
    const ReportCell& first = runs.cells.front();
    throw Error(Stage::options, "runs.unreadable", "",
                fmt::format("{}: {}", first.file, first.reason),
                "name a run file: what a script's `log` names");
  }
  for (const fs::path& folder : sweep_folders(given, set)) take_sweep(folder, runs);
  for (ReportCell& cell : runs.cells) {
    std::sort(cell.values.begin(), cell.values.end(), [&](const auto& a, const auto& b) {
      const auto at = [&](const auto& one) {
        return std::find(runs.axes.begin(), runs.axes.end(), one.first);
      };
      return at(a) < at(b);
    });
  }
  std::vector<std::size_t> alone;
  for (std::size_t c = 0; c < runs.cells.size(); ++c)
    if (runs.cells[c].sweep.empty()) alone.push_back(c);
  if (!alone.empty()) name_differences(runs, alone);
  return runs;
}

}  // namespace mw
