// `meshwright runs compare`: in what experiments differ, and their results beside each other.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "app/runs_rows.h"
#include "app/texts.h"
#include "common/run_timing.h"
#include "meshwright/engine/text.h"
#include "record/run_result.h"
#include "script/read_experiment.h"

namespace mw {
namespace {

// A line of the comparison: a key, with the value of each run.
struct Compared {
  std::string key;
  std::vector<Json> values;  // null: the run has none
};

// Whether the key only names a run or its files, and changes nothing that the run computes.
bool names_a_run(const std::string& key) {
  static const std::vector<std::string> names = keys_of_run();
  const std::string first = key.substr(0, key.find_first_of(".["));
  return first == "mix" || std::count(names.begin(), names.end(), first) > 0;
}

// Whether the runs are repeats, between which nothing but the seed differs, however it was written.
bool are_repeats(const std::vector<RunRow>& rows) {
  const Json& first = rows.front().fields["hash_without_seed"];
  return first.is_string() && std::all_of(rows.begin(), rows.end(), [&](const RunRow& row) {
           return row.fields["hash_without_seed"] == first;
         });
}

std::string plugins_of(const Json& experiment) {
  std::string names;
  if (!experiment.contains("plan") || !experiment["plan"].is_array()) return names;
  for (const Json& entry : experiment["plan"])
    names += (entry.is_object() ? entry.value("plugin", "") : "") + " ";
  return names;
}

// The keys in which the runs differ. If the plans have different strategies, whose options have
// nothing to do with each other, only the mixes are compared.
std::vector<Compared> differences(const std::vector<RunRow>& rows) {
  std::set<std::string> plugins;
  for (const RunRow& row : rows) plugins.insert(plugins_of(row.fields["experiment"]));
  const bool other_plans = plugins.size() > 1, repeats = are_repeats(rows);
  std::vector<std::string> order;
  std::map<std::string, std::vector<Json>> values;
  const auto put = [&](const std::string& key, std::size_t run, const Json& value) {
    auto [at, fresh] = values.try_emplace(key, rows.size());
    if (fresh) order.push_back(key);
    at->second[run] = value;
  };
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (other_plans) put("mix", r, rows[r].fields["mix"]);
    for (const auto& [key, value] : leaves(rows[r].fields["experiment"])) {
      if (names_a_run(key) || (other_plans && key.starts_with("plan["))) continue;
      if (repeats && key != "seed") continue;
      put(key, r, value);
    }
    for (const auto& [key, value] : rows[r].entry.values) put("sweep: " + key, r, value);
  }
  std::vector<Compared> differing;
  for (const std::string& key : order) {
    const std::vector<Json>& each = values[key];
    if (std::any_of(each.begin(), each.end(), [&](const Json& v) { return v != each.front(); }))
      differing.push_back({key, each});
  }
  return differing;
}

struct MeasuredRun {
  std::vector<std::int64_t> steps;
  std::vector<double> losses;
  std::map<std::string, double> bytes;  // sent by a rank in a step, by axis
  Json memory;
  Json broken;  // why nothing of it can be read
};

MeasuredRun measured_of(const RunRow& row) {
  MeasuredRun measured;
  if (!row.entry.readable()) return measured;
  RunReader reader(row.entry.path);
  const Json result = run_result(reader, row.entry);
  const Table steps = reader.table("steps");
  measured.steps = steps.integers("step");
  measured.losses = steps.numbers("loss");
  for (const Json& use : result.at("communication"))
    measured.bytes[use.at("axis").get<std::string>()] += use.at("bytes").get<double>();
  measured.memory = result.at("memory");
  return measured;
}

// The last step that all runs have; -1: none.
std::int64_t common_step(const std::vector<MeasuredRun>& runs) {
  std::int64_t step = -1;
  bool first = true;
  for (const MeasuredRun& run : runs) {
    if (run.steps.empty()) continue;  // unreadable, as another line says, or without steps
    const std::int64_t last = run.steps.back();
    step = first ? last : std::min(step, last);
    first = false;
  }
  return step;
}

std::vector<Compared> results_of(const std::vector<RunRow>& rows) {
  std::vector<MeasuredRun> measured;
  for (const RunRow& row : rows) {
    try {
      measured.push_back(measured_of(row));
    } catch (const std::exception& error) {
      measured.emplace_back().broken = problem_of(error).message;
    }
  }
  std::vector<Compared> results;
  Compared broken{"left out, as it cannot be read", {}};
  for (const MeasuredRun& run : measured) broken.values.push_back(run.broken);
  if (std::any_of(measured.begin(), measured.end(),
                  [](const MeasuredRun& run) { return !run.broken.is_null(); }))
    results.push_back(std::move(broken));
  const auto field = [&](const std::string& name) {
    Compared line{name, {}};
    for (const RunRow& row : rows) line.values.push_back(row.fields[name]);
    const bool any = std::any_of(line.values.begin(), line.values.end(),
                                 [](const Json& value) { return !value.is_null(); });
    if (any) results.push_back(std::move(line));
  };
  field("status");
  field("ranks");
  field("steps");
  // Losses are compared at a common step, as runs may differ in length.
  if (const std::int64_t step = common_step(measured); step >= 0) {
    Compared line{fmt::format("loss at step {}", step), {}};
    for (const MeasuredRun& run : measured) {
      const auto at = std::find(run.steps.begin(), run.steps.end(), step);
      line.values.push_back(
          at == run.steps.end()
              ? Json()
              : Json(run.losses[static_cast<std::size_t>(at - run.steps.begin())]));
    }
    results.push_back(std::move(line));
  }
  for (const char* name : {"step_seconds", "tokens_per_second", "cpu_seconds_per_step", "mfu",
                           "bubble_fraction", "peak_bytes"})
    field(name);
  std::set<std::string> categories, axes;
  for (const MeasuredRun& run : measured) {
    for (const auto& [axis, bytes] : run.bytes) axes.insert(axis);
    if (run.memory.is_object())
      for (const auto& [category, bytes] : run.memory.items()) categories.insert(category);
  }
  for (const std::string& category : categories) {
    Compared line{"memory." + category, {}};
    for (const MeasuredRun& run : measured)
      line.values.push_back(
          run.memory.is_object() && run.memory.contains(category) ? run.memory[category] : Json());
    results.push_back(std::move(line));
  }
  for (const std::string& axis : axes) {
    Compared line{"bytes over " + axis, {}};
    for (const MeasuredRun& run : measured) {
      const auto at = run.bytes.find(axis);
      line.values.push_back(run.steps.empty()       ? Json()
                            : at == run.bytes.end() ? Json(0)
                                                    : Json(static_cast<std::int64_t>(at->second)));
    }
    results.push_back(std::move(line));
  }
  return results;
}

// (other - one) / one; null where that is no number.
Json delta(const Json& one, const Json& other) {
  if (!one.is_number() || !other.is_number()) return nullptr;
  const double from = one.get<double>(), to = other.get<double>();
  return number_or_null((to - from) / std::abs(from));
}

std::size_t baseline_of(const std::vector<RunRow>& rows, const std::string& wanted) {
  if (wanted.empty()) return 0;
  std::vector<std::string> names;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const RunEntry& entry = rows[r].entry;
    std::error_code error;
    if (entry.name == wanted || (!entry.path.empty() && entry.path == wanted) ||
        std::filesystem::equivalent(entry.path, wanted, error) ||
        std::filesystem::equivalent(entry.folder, wanted, error))
      return r;
    names.push_back(entry.name);
  }
  const std::string near = did_you_mean(wanted, names);
  throw Error(Stage::options, "runs.baseline", "",
              fmt::format("--baseline {}: none of these runs", wanted),
              near.empty() ? "they are: " + join(names) : near);
}

// Names that two runs share are told apart by their files.
void tell_apart(std::vector<RunRow>& rows) {
  std::map<std::string, int> count;
  for (const RunRow& row : rows) ++count[row.entry.name];
  for (RunRow& row : rows) {
    if (count[row.entry.name] > 1)
      row.entry.name = (row.entry.path.empty() ? row.entry.folder : row.entry.path).string();
  }
}

std::vector<std::string> cautions(const std::vector<RunRow>& rows) {
  std::vector<std::string> notes;
  const auto differ = [&](const char* field) {
    std::set<std::string> found;
    for (const RunRow& row : rows) {
      if (row.fields[field].is_string()) found.insert(row.fields[field].get<std::string>());
    }
    return found.size() > 1 ? join({found.begin(), found.end()}) : "";
  };
  if (const std::string hosts = differ("host"); !hosts.empty())
    notes.push_back("measured on other machines: " + hosts + "; times do not compare");
  for (const RunRow& row : rows) {
    if (row.entry.status != "done")
      notes.push_back(fmt::format("{}: {}{}", row.entry.name, row.entry.status,
                                  row.entry.reason.empty() ? "" : ": " + row.entry.reason));
  }
  return notes;
}

int compare_runs(const RunsArguments& arguments, Output& output) {
  std::vector<RunRow> rows = rows_of(runs_of(arguments.files));
  if (rows.size() < 2) {
    throw Error(Stage::options, "compare.count", "",
                fmt::format("runs compare takes two runs or more; found {}",
                            plural(static_cast<std::int64_t>(rows.size()), "run")),
                "name two run files, or a folder that has several");
  }
  const std::size_t baseline = baseline_of(rows, arguments.baseline);
  tell_apart(rows);
  const std::vector<Compared> differing = differences(rows), results = results_of(rows);
  Json json = {{"kind", "compared-runs"},
               {"runs", Json::array()},
               {"baseline", rows[baseline].entry.name},
               {"differences", Json::object()},
               {"results", Json::object()},
               {"deltas", Json::object()}};
  for (const RunRow& row : rows) json["runs"].push_back(row.entry.name);
  for (const Compared& line : differing) json["differences"][line.key] = line.values;
  for (const Compared& line : results) {
    json["results"][line.key] = line.values;
    Json deltas = Json::array();
    for (const Json& value : line.values) deltas.push_back(delta(line.values[baseline], value));
    if (line.values[baseline].is_number()) json["deltas"][line.key] = deltas;
  }
  json["notes"] = cautions(rows);
  if (!output.json()) output.text(from_library("runs_compare", json).get<std::string>());
  output.result(json);
  return 0;
}

const CommandOf<RunsArguments> runs_compare_command{
    {"runs compare", 153, "in what experiments differ, and their results beside each other"},
    [](CLI::App& command, RunsArguments& a) {
      command.footer("runs/one.h5 runs/other.h5");
      add_run_files(command, a)->required();
      command
          .add_option("--baseline", a.baseline,
                      "the run that the others are compared with: its name or its file (default: "
                      "the first)")
          ->type_name("RUN");
      add_json(command, a);
    },
    compare_runs};

}  // namespace
}  // namespace mw
