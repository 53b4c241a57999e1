// Finds the runs that a report is asked for, and reads each one's numbers from its run file and its
// result.
#include "report/cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>

#include "base/text.h"
#include "meshwright/error.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr const char* path_hint =
    "name a run file (what a script's log names), a run's folder, or a sweep's (runs/NAME)";

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Null if there is none, or what is there is no JSON.
Json read_json(const fs::path& path) {
  Json json = Json::parse(read_text(path), nullptr, false);
  return json.is_discarded() ? Json() : json;
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "";
  if (value.is_number_float()) return format_number(value.get<double>());
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string text_at(const Json& json, const char* key) {
  return json.is_object() && json.contains(key) ? text_of(json[key]) : "";
}

double number_at(const Json& json, const char* key) {
  if (!json.is_object() || !json.contains(key) || !json[key].is_number()) return not_known;
  return json[key].get<double>();
}

// Nested tables as "a.b".
void flatten(const std::string& name, const Json& json,
             std::vector<std::pair<std::string, std::string>>& out) {
  if (!json.is_object()) {
    if (!name.empty()) out.emplace_back(name, text_of(json));
    return;
  }
  for (const auto& [key, value] : json.items())
    flatten(name.empty() ? key : name + "." + key, value, out);
}

void take_plan(ReportCell& cell, const std::string& text) {
  const Json plan = Json::parse(text, nullptr, false);
  if (!plan.is_object()) return;
  if (const std::string mix = text_at(plan, "mix"); !mix.empty()) cell.mix = mix;
  if (const double ranks = number_at(plan, "ranks"); ranks > 0)
    cell.ranks = static_cast<int>(ranks);
}

// All keys but those in which repeats differ.
std::string settings_of(const RunFacts& facts) {
  Json experiment = Json::parse(facts.experiment, nullptr, false);
  if (!experiment.is_object()) return facts.plan;
  for (const char* key : {"seed", "name", "log", "overwrite"}) experiment.erase(key);
  return experiment.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_held_out(const std::string& name) {
  return name.starts_with("held_out") || name.starts_with("held-out") ||
         name.starts_with("validation");
}

void take_facts(ReportCell& cell, const RunFacts& facts) {
  if (cell.status.empty()) cell.status = facts.status;
  if (cell.reason.empty()) cell.reason = facts.reason;
  if (cell.seed.empty()) cell.seed = facts.seed;
  if (cell.hash.empty()) cell.hash = facts.hash;
  if (cell.name.empty()) cell.name = facts.name;
  take_plan(cell, facts.plan);
  cell.settings = settings_of(facts);
  cell.ranks = std::max(cell.ranks, facts.ranks);
  cell.steps = static_cast<std::int64_t>(facts.steps.size());
  for (const StepRow& step : facts.steps) cell.losses.emplace_back(step.step, step.loss);
  if (!facts.steps.empty()) cell.loss = facts.steps.back().loss;
  cell.step_seconds = facts.step_seconds;
  cell.tokens_per_second.measured = facts.tokens_per_second;
  if (!facts.steps.empty() && facts.step_seconds.predicted > 0) {
    cell.tokens_per_second.predicted =
        static_cast<double>(facts.steps.back().tokens) / facts.step_seconds.predicted;
  }
  cell.mfu = facts.mfu;
  cell.bubble = facts.bubble;
  cell.peak = facts.peak;
  cell.memory = facts.memory;
  cell.bytes = facts.bytes;
  cell.series = facts.series;
  for (const auto& [name, values] : cell.series)
    if (is_held_out(name) && !values.empty()) cell.held_out = values.back().second;
  if (!cell.machine.empty()) return;
  if (!facts.host.empty()) cell.machine.emplace_back("host", facts.host);
  flatten("", Json::parse(facts.versions, nullptr, false), cell.machine);
}

// What `plan` says of an experiment: of cells that were predicted and not run.
void take_prediction(ReportCell& cell, const Json& plan) {
  cell.step_seconds.predicted = number_at(plan, "step_seconds");
  cell.tokens_per_second.predicted = number_at(plan, "tokens_per_second");
  cell.ranks = std::max(cell.ranks, static_cast<int>(std::max(0.0, number_at(plan, "ranks"))));
  if (plan.contains("memory") && plan["memory"].is_array()) {
    for (const Json& stage : plan["memory"]) {
      if (!stage.is_object()) continue;
      for (const auto& [name, bytes] : stage.items()) {
        if (!bytes.is_number() || name == "stage") continue;
        double& most = name == "peak" ? cell.peak.predicted : cell.memory[name].predicted;
        if (!(most >= bytes.get<double>())) most = bytes.get<double>();
      }
    }
  }
  if (!plan.contains("communication") || !plan["communication"].is_array()) return;
  for (const Json& use : plan["communication"]) {
    if (!use.is_object()) continue;
    double& bytes = cell.bytes[text_at(use, "axis")].predicted;
    bytes = (std::isnan(bytes) ? 0 : bytes) + std::max(0.0, number_at(use, "bytes"));
  }
}

// A result line: of kind cell, train or plan.
void take_result(ReportCell& cell, const Json& result) {
  if (!result.is_object()) return;
  if (cell.status.empty()) cell.status = text_at(result, "status");
  if (cell.reason.empty()) cell.reason = text_at(result, "reason");
  if (cell.hash.empty()) cell.hash = text_at(result, "hash");
  if (cell.seed.empty()) cell.seed = text_at(result, "seed");
  if (cell.mix.empty()) cell.mix = text_at(result, "mix");
  const bool plan = result.contains("memory") && result["memory"].is_array();
  if (!cell.measured() && plan) take_prediction(cell, result);
  if (!cell.measured() && result.contains("predicted") && result["predicted"].is_object())
    take_prediction(cell, result["predicted"]);
}

void take_machine(ReportCell& cell, const fs::path& folder) {
  const Json machine = read_json(folder / "machine.json");
  if (!machine.is_object()) return;
  cell.machine.clear();
  flatten("", machine, cell.machine);
}

// `named`: the path was given, so that what is wrong with it is an error.
void read_run(ReportCell& cell, const fs::path& file, bool named) {
  try {
    take_facts(cell, read_run_facts(file, /*actions=*/false));
  } catch (const Error& error) {
    if (named) throw;
    if (!cell.reason.empty()) cell.reason += "; ";
    cell.reason += fmt::format("its run file cannot be read: {}", error.what());
    if (cell.status.empty() || cell.done()) cell.status = "failed";
  }
}

ReportCell run_folder(const fs::path& folder, bool named) {
  ReportCell cell;
  cell.file = (folder / "run.h5").string();
  read_run(cell, folder / "run.h5", named);
  take_machine(cell, folder);
  return cell;
}

void take_values(ReportCell& cell, const Json& values, ReportRuns& runs) {
  if (!values.is_object()) return;
  for (const auto& [key, value] : values.items()) {
    if (key == "seed") {
      cell.seed = text_of(value);
      continue;
    }
    cell.values.emplace_back(key, text_of(value));
    if (std::find(runs.axes.begin(), runs.axes.end(), key) == runs.axes.end())
      runs.axes.push_back(key);
  }
}

ReportCell sweep_cell(const fs::path& sweep, const Json& row, ReportRuns& runs) {
  ReportCell cell;
  cell.name = text_at(row, "name");
  if (cell.name.empty()) cell.name = text_at(row, "id");
  cell.status = text_at(row, "status");
  cell.reason = text_at(row, "reason");
  cell.hash = text_at(row, "id");
  cell.seconds = number_at(row, "seconds");
  if (row.contains("values")) take_values(cell, row["values"], runs);
  std::string own = text_at(row, "folder");
  if (own.empty()) own = text_at(row, "id");
  if (own.empty()) return cell;
  fs::path folder = own;
  std::error_code error;
  if (!folder.is_absolute() && fs::is_directory(sweep / own, error)) folder = sweep / own;
  // Written from another folder, or moved since.
  if (!fs::is_directory(folder, error)) folder = sweep / folder.filename();
  cell.file = folder.string();
  if (fs::exists(folder / "run.h5", error)) {
    cell.file = (folder / "run.h5").string();
    read_run(cell, folder / "run.h5", false);
  }
  take_result(cell, read_json(folder / "result.json"));
  take_machine(cell, folder);
  return cell;
}

void add_sweep(const fs::path& folder, ReportRuns& runs) {
  const Json sweep = read_json(folder / "sweep.json");
  if (!sweep.is_object() || !sweep.contains("cells") || !sweep["cells"].is_array()) {
    throw Error(
        Stage::options, "file.format", "",
        fmt::format("{}: it is no list of a sweep's cells", (folder / "sweep.json").string()),
        path_hint);
  }
  runs.name =
      runs.name.empty() ? text_at(sweep, "name") : runs.name + ", " + text_at(sweep, "name");
  if (runs.baseline.empty()) runs.baseline = text_at(sweep, "baseline");
  if (runs.same_loss_as.empty()) runs.same_loss_as = text_at(sweep, "same_loss_as");
  runs.workers =
      std::max(runs.workers, static_cast<std::int64_t>(std::max(0.0, number_at(sweep, "workers"))));
  const auto ask = [&](const char* what, const std::string& text) {
    if (!text.empty()) runs.asked.emplace_back(what, text);
  };
  ask("sweep", text_at(sweep, "name"));
  ask("script", text_at(sweep, "script"));
  if (sweep.contains("axes") && sweep["axes"].is_array()) {
    for (const Json& axis : sweep["axes"]) {
      const std::string key = text_at(axis, "key");
      if (key.empty()) continue;
      std::vector<std::string> values;
      if (axis.contains("values") && axis["values"].is_array())
        for (const Json& value : axis["values"]) values.push_back(text_of(value));
      if (key != "seed" && std::find(runs.axes.begin(), runs.axes.end(), key) == runs.axes.end())
        runs.axes.push_back(key);
      ask(("over " + key).c_str(),
          fmt::format("{}: {}", plural(static_cast<std::int64_t>(values.size()), "value"),
                      join(values)));
    }
  }
  ask("baseline", runs.baseline);
  ask("loss held to that of", runs.same_loss_as);
  ask("begun", text_at(sweep, "created"));
  ask("folder", folder.string());
  for (const Json& row : sweep["cells"])
    if (row.is_object()) runs.cells.push_back(sweep_cell(folder, row, runs));
}

ReportCell run_file(const fs::path& path) {
  ReportCell cell;
  cell.file = path.string();
  read_run(cell, path, true);
  if (path.filename() == "run.h5") take_machine(cell, path.parent_path());
  return cell;
}

void add_folder(const fs::path& folder, ReportRuns& runs, bool named) {
  std::error_code error;
  if (fs::exists(folder / "sweep.json", error)) return add_sweep(folder, runs);
  if (fs::exists(folder / "run.h5", error)) {
    runs.cells.push_back(run_folder(folder, named));
    return;
  }
  if (!named) return;
  std::set<fs::path> inside;
  for (const auto& entry : fs::directory_iterator(folder, error)) inside.insert(entry.path());
  const std::size_t before = runs.cells.size();
  for (const fs::path& path : inside) {
    if (fs::is_directory(path, error)) {
      add_folder(path, runs, false);
    } else if (path.extension() == ".h5" && !path.filename().string().starts_with('.')) {
      ReportCell cell;
      cell.file = path.string();
      read_run(cell, path, false);
      runs.cells.push_back(std::move(cell));
    }
  }
  if (runs.cells.size() > before) return;
  throw Error(Stage::options, "file.missing", "",
              fmt::format("{}: there is no run in this folder", folder.string()), path_hint);
}

// --- Runs by themselves: what tells them apart ---

// The keys of plan and experiment whose values differ, at most `most`, the plan's mix apart.
void name_differences(ReportRuns& runs, const std::vector<std::size_t>& which) {
  constexpr std::size_t most = 4;
  std::vector<std::map<std::string, std::string>> all;
  std::map<std::string, std::set<std::string>> seen;
  for (const std::size_t c : which) {
    std::vector<std::pair<std::string, std::string>> flat;
    flatten("", Json::parse(runs.cells[c].settings, nullptr, false), flat);
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

ReportRuns find_runs(const std::vector<fs::path>& paths) {
  ReportRuns runs;
  std::error_code error;
  for (const fs::path& path : paths) {
    if (fs::is_directory(path, error)) {
      add_folder(path, runs, true);
    } else if (path.filename() == "sweep.json") {
      add_sweep(path.parent_path().empty() ? fs::path(".") : path.parent_path(), runs);
    } else {
      runs.cells.push_back(run_file(path));
    }
  }
  std::vector<std::size_t> alone;
  for (std::size_t c = 0; c < runs.cells.size(); ++c)
    if (runs.cells[c].values.empty()) alone.push_back(c);
  if (!alone.empty()) name_differences(runs, alone);
  for (ReportCell& cell : runs.cells) {
    if (cell.name.empty()) cell.name = cell.mix.empty() ? cell.file : cell.mix;
  }
  return runs;
}

}  // namespace mw
