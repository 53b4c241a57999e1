// Reads the numbers of one run, from its file and its result.
#include "report/run_cell.h"

#include <algorithm>
#include <cmath>

#include "common/json_file.h"
#include "meshwright/engine/text.h"

namespace mw {

namespace fs = std::filesystem;

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

void flatten(const std::string& name, const Json& json,
             std::vector<std::pair<std::string, std::string>>& out) {
  if (!json.is_object()) {
    if (!name.empty()) out.emplace_back(name, text_of(json));
    return;
  }
  for (const auto& [key, value] : json.items())
    flatten(name.empty() ? key : name + "." + key, value, out);
}

namespace {

// All keys but those in which repeats differ.
std::string settings_of(Json settings) {
  for (const char* key : {"seed", "name", "log", "overwrite", "observe", "trace"})
    if (settings.is_object()) settings.erase(key);
  return settings.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::pair<std::string, std::string>> work_of(const Json& experiment) {
  std::vector<std::pair<std::string, std::string>> work;
  if (!experiment.is_object()) return work;
  for (const char* key : {"model", "sequence", "batch", "data"}) {
    if (!experiment.contains(key)) continue;
    Json part = experiment[key];
    if (part.is_object()) part.erase("seed");
    flatten(key, part, work);
  }
  return work;
}

void take_facts(ReportCell& cell, const RunFacts& facts) {
  cell.mix = facts.head.mix();
  cell.settings = settings_of(facts.experiment.is_object() ? facts.experiment : facts.head.plan);
  cell.work = work_of(facts.experiment);
  if (const double ranks = number_at(facts.head.plan, "ranks"); ranks > 0)
    cell.ranks = static_cast<int>(ranks);
  cell.ranks = std::max(cell.ranks, facts.ranks);
  cell.steps = static_cast<std::int64_t>(facts.steps.size());
  for (const StepRow& step : facts.steps) cell.losses.emplace_back(step.step, step.loss);
  if (!facts.steps.empty()) cell.loss = facts.steps.back().loss;
  cell.step_seconds = facts.step_seconds;
  if (const double seconds = number_at(facts.predicted_result, "step_seconds"); seconds > 0)
    cell.step_seconds.predicted = seconds;
  cell.tokens_per_second.measured = facts.tokens_per_second;
  if (!facts.steps.empty() && cell.step_seconds.predicted > 0) {
    cell.tokens_per_second.predicted =
        static_cast<double>(facts.steps.back().tokens) / cell.step_seconds.predicted;
  }
  cell.mfu = facts.mfu;
  cell.bubble = facts.bubble;
  cell.peak = facts.peak;
  cell.memory = facts.memory;
  cell.bytes = facts.bytes;
  cell.series = facts.series;
  const auto held_out = cell.series.find("held_out_loss");  // other names are metrics of a user's
  if (held_out != cell.series.end() && !held_out->second.empty())
    cell.held_out = held_out->second.back().second;
  if (!facts.head.host.empty()) cell.machine.emplace_back("host", facts.head.host);
  flatten("", facts.head.versions, cell.machine);
}

// What `plan` says of an experiment: of cells that were predicted and not run.
void take_prediction(ReportCell& cell, const Json& plan) {
  cell.step_seconds.predicted = number_at(plan, "step_seconds");
  cell.tokens_per_second.predicted = number_at(plan, "tokens_per_second");
  cell.fits = !plan.contains("fits") || plan["fits"] != false;
  if (plan.contains("experiment") && cell.settings.empty()) {
    cell.settings = settings_of(plan["experiment"]);
    cell.work = work_of(plan["experiment"]);
  }
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

void take_machine(ReportCell& cell, const fs::path& folder) {
  const Json machine = read_json(folder / "machine.json");
  if (!machine.is_object()) return;
  cell.machine.clear();
  flatten("", machine, cell.machine);
}

}  // namespace

void take_result(ReportCell& cell, const Json& result) {
  if (!result.is_object()) return;
  const auto held = result.find("same_loss_as");
  if (held != result.end() && held->is_object() && held->contains("compared"))
    cell.compared = (*held)["compared"] == true;
  if (const double beside = number_at(result, "beside"); beside > 0)
    cell.beside = static_cast<int>(beside);
  const bool plan = result.contains("memory") && result["memory"].is_array();
  if (!cell.measured() && plan) take_prediction(cell, result);
  if (!cell.measured() && result.contains("predicted") && result["predicted"].is_object())
    take_prediction(cell, result["predicted"]);
}

ReportCell cell_of(const RunEntry& entry, std::vector<std::string>& axes) {
  ReportCell cell;
  cell.name = entry.name;
  cell.status = entry.status;
  cell.reason = entry.reason;
  cell.hash = entry.hash;
  cell.sweep = entry.sweep;
  cell.file = (entry.path.empty() ? entry.folder : entry.path).string();
  if (entry.readable()) {
    cell.seed = std::to_string(entry.seed);
    try {
      take_facts(cell, read_run_facts(entry.path, /*actions=*/false));
    } catch (const std::exception& error) {  // changed since, or broken behind its head
      cell.status = "unreadable";
      cell.reason = error.what();
    }
  }
  for (const auto& [key, value] : entry.values) {
    if (key == "seed" || key == "repeat") {
      cell.seed = value;
      continue;
    }
    cell.values.emplace_back(key, value);
    if (std::find(axes.begin(), axes.end(), key) == axes.end()) axes.push_back(key);
  }
  if (entry.folder.empty()) return cell;
  take_result(cell, read_json(entry.folder / "result.json"));
  take_machine(cell, entry.folder);
  return cell;
}

}  // namespace mw
