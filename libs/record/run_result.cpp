// Puts a run's result together again from what its file holds.
#include "record/run_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "common/run_timing.h"
#include "common/statistics.h"
#include "record/account.h"
#include "record/columns.h"
#include "record/run_facts.h"

namespace mw {
namespace {

Json last_of(const std::vector<double>& values) {
  return values.empty() ? Json() : Json(values.back());
}

std::int64_t highest(const std::vector<std::int64_t>& values) {
  return values.empty() ? -1 : *std::max_element(values.begin(), values.end());
}

Json memory_of(const Table& table) {
  Json memory = Json::object();
  const auto categories = table.texts("category");
  const auto peaks = table.integers("peak_bytes");
  for (std::size_t r = 0; r < categories.size(); ++r) {
    Json& most = memory[categories[r]];
    most = std::max(most.is_null() ? 0 : most.get<std::int64_t>(), peaks[r]);
  }
  return memory;
}

// For each kind of transfer the numbers of the rank that sends most, and the calls of the rank that
// makes most, as the result has them.
Json communication_of(const Table& table) {
  struct Use {
    std::int64_t bytes = 0, calls = 0;
    double seconds = 0;
  };
  const auto axis = table.texts("axis"), op = table.texts("op"), phase = table.texts("phase");
  const auto calls = table.integers("calls"), bytes = table.integers("bytes");
  const auto seconds = table.numbers("seconds");
  std::map<std::tuple<std::string, std::string, std::string>, Use> most;
  for (std::size_t r = 0; r < axis.size(); ++r) {
    Use& known = most[{axis[r], op[r], phase[r]}];
    const std::int64_t most_calls = std::max(known.calls, calls[r]);
    if (std::pair(bytes[r], calls[r]) > std::pair(known.bytes, known.calls))
      known = {bytes[r], calls[r], seconds[r]};
    known.calls = most_calls;
  }
  Json list = Json::array();
  for (const auto& [key, use] : most) {
    list.push_back({{"axis", std::get<0>(key)},
                    {"op", std::get<1>(key)},
                    {"phase", std::get<2>(key)},
                    {"calls", use.calls},
                    {"bytes", use.bytes},
                    {"seconds", use.seconds}});
  }
  return list;
}

// Null where no step has a number.
Json mean_after_warm_up(const std::vector<double>& values) {
  const auto from = static_cast<std::ptrdiff_t>(warm_up(values.size()));
  const MeanAndDeviation mean = mean_and_deviation({values.begin() + from, values.end()});
  return number_or_null(mean.mean);
}

// Sets into[name] from /result, or else from the tables.
void settle(Json& into, const Json& result, const char* name, const Json& otherwise) {
  into[name] = result.is_object() && result.contains(name) ? result[name] : otherwise;
}

Json column_json(const TableColumn& column) {
  return std::visit([](const auto& values) { return Json(values); }, column.values);
}

void add_leaves(const Json& value, const std::string& path,
                std::vector<std::pair<std::string, Json>>& out) {
  if (value.is_object() && value.contains("function") && value.contains("hash")) {
    // A function counts by its hash, not by its place.
    const Json& hash = value["hash"];
    out.emplace_back(path,
                     "function " + (hash.is_string() ? hash.get<std::string>() : hash.dump()));
  } else if (value.is_object() && !value.empty()) {
    for (const auto& [key, item] : value.items()) {
      if (!key.starts_with("$")) add_leaves(item, path.empty() ? key : path + "." + key, out);
    }
  } else if (value.is_array() && !value.empty()) {
    std::size_t index = 0;
    for (const Json& item : value) add_leaves(item, fmt::format("{}[{}]", path, ++index), out);
  } else {
    out.emplace_back(path, value);
  }
}

}  // namespace

std::vector<std::pair<std::string, Json>> leaves(const Json& table) {
  std::vector<std::pair<std::string, Json>> out;
  add_leaves(table, "", out);
  return out;
}

std::vector<std::pair<std::string, std::string>> work_of(const Json& experiment) {
  std::vector<std::pair<std::string, std::string>> work;
  if (!experiment.is_object()) return work;
  for (const char* key : {"model", "sequence", "batch", "data"}) {
    if (!experiment.contains(key)) continue;
    for (const auto& [name, value] : leaves({{key, experiment[key]}}))
      if (name != "data.seed")
        work.emplace_back(name, value.is_string() ? value.get<std::string>() : json_text(value));
  }
  return work;
}

Json experiment_of(RunReader& reader) {
  Json experiment = reader.experiment();
  if (experiment.is_object()) return experiment;
  const RunHead head = reader.head();
  experiment = head.plan.is_object() ? head.plan : Json::object();
  experiment.erase("schedule");  // a list of all actions; the plan's entries name the schedule
  experiment["seed"] = head.seed;
  return experiment;
}

Json run_numbers(RunReader& reader) {
  const RunHead head = reader.head();
  const Json result = reader.result();
  const Table steps = reader.table("steps"), memory = reader.table("rank_memory");
  const auto losses = steps.numbers("loss");
  const auto bytes = [](std::int64_t most) { return most < 0 ? Json() : Json(most); };
  Json numbers;
  settle(numbers, result, "ranks",
         head.plan.is_object() && head.plan.contains("ranks") ? head.plan["ranks"] : Json());
  numbers["steps"] = steps.rows;
  numbers["loss"] = last_of(losses);
  numbers["first_loss"] = losses.empty() ? Json() : Json(losses.front());
  numbers["grad_norm"] = last_of(steps.numbers("grad_norm"));
  const RunTiming timing = read_timing(result);
  const RunSpeed speed = speed_of(steps_of(steps), timing);
  settle(numbers, result, "step_seconds", number_or_null(speed.step_seconds));
  settle(numbers, result, "tokens_per_second", number_or_null(speed.tokens_per_second));
  settle(numbers, result, "mfu", number_or_null(speed.mfu));
  settle(numbers, result, "bubble_fraction",
         steps.rows == 0 ? Json() : Json(median_after_warm_up(steps.numbers("bubble"))));
  settle(numbers, result, "peak_bytes", bytes(highest(memory.integers("peak_bytes"))));
  numbers["predicted_peak_bytes"] = bytes(highest(memory.integers("predicted_bytes")));
  for (const char* name : {"cpu_seconds_per_step", "startup_seconds", "held_out_loss"})
    settle(numbers, result, name, nullptr);
  numbers["others_cores"] = std::isfinite(timing.use.others)
                                ? Json(timing.use.others)
                                : mean_after_warm_up(steps.numbers("others_cores"));
  numbers["disturbed"] = timing.steps > 0 ? Json(timing.disturbed) : Json();
  return numbers;
}

Json run_result(RunReader& reader, const RunEntry& entry) {
  const RunHead head = reader.head();
  const Json kept = reader.result();
  const Json numbers = run_numbers(reader);
  const Table steps = reader.table("steps");
  Json result = {
      {"kind", "train"},        {"name", entry.name},
      {"hash", head.hash},      {"hash_without_seed", head.hash_without_seed},
      {"seed", head.seed},      {"created", head.created},
      {"host", head.host},      {"versions", head.versions},
      {"status", entry.status}, {"reason", entry.reason.empty() ? Json() : Json(entry.reason)}};
  settle(result, kept, "plan", head.mix());
  result["plan_hash"] = head.plan_hash;
  result["ranks"] = numbers["ranks"];
  result["steps"] = steps.rows;
  result["losses"] = steps.numbers("loss");
  result["grad_norms"] = steps.numbers("grad_norm");
  for (const char* name : {"step_seconds", "tokens_per_second", "cpu_seconds_per_step", "mfu",
                           "bubble_fraction", "startup_seconds", "peak_bytes"})
    result[name] = numbers[name];
  settle(result, kept, "memory", memory_of(reader.table("memory")));
  Json communication = Json::array();
  if (steps.rows > 0 && !(kept.is_object() && kept.contains("communication"))) {
    communication =
        communication_of(reader.table_of_step("communication", steps.integers("step").back()));
  }
  settle(result, kept, "communication", communication);
  result["predicted"] = reader.predicted();
  result["log"] = entry.path.string();
  if (kept.is_object()) {  // keys that only some runs have: experts, check, a loss scale
    for (const auto& [key, value] : kept.items())
      if (!result.contains(key)) result[key] = value;
  }
  result["per_step"] = Json::object();
  for (const TableColumn& column : steps.columns)
    result["per_step"][column.name] = column_json(column);
  result["series"] = {{"step", reader.series_steps()}};
  for (const Series& series : reader.series()) result["series"][series.name] = series.values;
  if (const auto account = read_account(reader)) result["account"] = account->to_json();
  result["experiment"] = experiment_of(reader);
  result["plan_description"] = head.plan;
  if (!entry.sweep.empty()) result["sweep"] = entry.sweep;
  if (!entry.values.empty()) {
    result["values"] = Json::object();
    for (const auto& [key, value] : entry.values) result["values"][key] = value;
  }
  return result;
}

}  // namespace mw
