// Reads the steps, actions and plan of a run file back, and refuses files that are none.
#include "record/run_reader.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <system_error>

#include "common/files.h"
#include "common/statistics.h"
#include "meshwright/engine/files.h"
#include "meshwright/run_file.h"
#include "record/run_writer.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

Error refused(const char* code, const fs::path& path, const std::string& why, std::string hint) {
  return {Stage::options, code, "", fmt::format("{}: {}", path.string(), why), std::move(hint)};
}

// Checks the file before HDF5 opens it, as HDF5's own errors speak of addresses and signatures.
const fs::path& checked(const fs::path& path, Probe probe) {
  std::error_code error;
  const char* hint = "name a run file: what a script's `log` names";
  if (!fs::exists(path, error)) throw refused("file.missing", path, "there is no such file", hint);
  check_regular(path);
  if (!is_hdf5(path)) throw refused("run-file.foreign", path, "it is no run file (not HDF5)", hint);
  if (probe == Probe::yes) probe_run_file(path);
  return path;
}

template <typename Row>
std::vector<Row> unpack(const std::vector<char>& packed, const TableLayout& layout,
                        Row (*unpack_one)(const char*)) {
  std::vector<Row> rows;
  const std::size_t bytes = layout.row_bytes();
  rows.reserve(packed.size() / bytes);
  for (std::size_t at = 0; at < packed.size(); at += bytes)
    rows.push_back(unpack_one(packed.data() + at));
  return rows;
}

}  // namespace

RunReader::RunReader(const fs::path& path, Probe probe)
    : path_(path), file_(checked(path, probe), Hdf5File::Mode::read) {
  const std::string schema = file_.attribute("/", "schema");
  if (schema == run_schema) return;
  throw refused("run-file.schema", path,
                schema.empty() ? "it is no run file (HDF5 without a schema)"
                               : fmt::format("its schema is {}, not {}", schema, run_schema),
                "name a run file: what a script's `log` names");
}

std::string RunReader::plan() {
  return file_.read_text("plan");
}

std::string RunHead::mix() const {
  return plan.is_object() && plan.contains("mix") && plan["mix"].is_string()
             ? plan["mix"].get<std::string>()
             : "";
}

RunHead RunReader::head() {
  const auto text = [&](const char* name) { return file_.attribute("/", name); };
  RunHead head;
  head.status = text("status");
  head.reason = text("reason");
  head.created = text("created");
  head.host = text("host");
  head.name = text("name");
  head.hash = text("hash");
  head.hash_without_seed = text("hash_without_seed");
  head.plan_hash = text("plan_hash");
  head.process = text("process");
  head.seed = file_.integer("/", "seed", 0);
  head.versions = json_in(text("versions"));
  head.plan = json("plan");
  return head;
}

std::string RunReader::script() {
  return file_.has("script") ? file_.read_text("script") : "";
}

Json RunReader::json(const char* name) {
  if (!file_.has(name)) return nullptr;
  return json_in(file_.read_text(name));
}

Table RunReader::table(const char* name, std::uint64_t at) {
  return file_.has(name) ? file_.read_table(name, at) : Table();
}

Table RunReader::table_of_step(const char* name, std::int64_t step) {
  const std::uint64_t all = rows(name);
  if (all == 0) return {};
  const auto first_from = [&](std::int64_t wanted) {
    std::uint64_t low = 0, high = all;
    while (low < high) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (file_.read_table(name, middle, 1).integers("step").at(0) < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  const std::uint64_t first = first_from(step);
  return file_.read_table(name, first, std::max(first_from(step + 1), first) - first);
}

std::vector<std::int64_t> RunReader::traced_steps() {
  std::vector<std::int64_t> steps = table("trace").integers("step");
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

std::vector<std::int64_t> RunReader::series_steps() {
  if (!file_.has("series") || !file_.has("series/step")) return {};
  std::vector<std::int64_t> steps;
  for (const double step : file_.read_numbers("series/step"))  // a damaged file may hold any number
    steps.push_back(std::abs(step) < 0x1p62 ? static_cast<std::int64_t>(step) : -1);
  return steps;
}

std::vector<Series> RunReader::series() {
  std::vector<Series> all;
  for (const std::string& place : file_.datasets("series")) {
    if (place == "step") continue;
    const std::string path = "series/" + place;
    const std::string name = file_.attribute(path.c_str(), "name");
    // A metric named "step" goes by its place's name, as "series/step" lists the steps.
    all.push_back({name.empty() || name == "step" ? place : name, file_.read_numbers(path)});
  }
  return all;
}

std::vector<StepRow> RunReader::steps() {
  const Table steps = table("steps");
  for (const char* name : {"step", "seconds", "loss", "grad_norm", "lr", "tokens",
                           "tokens_per_second", "mfu", "bubble"}) {
    if (steps.find(name) != nullptr) continue;
    throw Error(Stage::run, "run-file.column", "",
                fmt::format("run file {}: /steps has no column {}", path_.string(), name),
                "is it whole, and a run file of this version?");
  }
  return steps_of(steps);
}

std::vector<ActionRow> RunReader::predicted_actions() {
  const TableLayout& layout = predicted_action_table();
  if (!file_.has(layout.name)) return {};
  return unpack(file_.read_rows(layout, 0, file_.count_rows(layout)), layout,
                unpack_predicted_action);
}

// Rows lie in the order of their steps, so that few rows of a long table are read.
std::uint64_t RunReader::first_of(std::int64_t step) {
  const TableLayout& layout = action_table();
  std::uint64_t low = 0, high = file_.count_rows(layout);
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (unpack_action(file_.read_rows(layout, middle, 1).data()).step < step) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

std::vector<ActionRow> RunReader::actions(std::int64_t step) {
  const TableLayout& layout = action_table();
  // The steps of a damaged file may be in any order.
  const std::uint64_t first = first_of(step), end = std::max(first_of(step + 1), first);
  return unpack(file_.read_rows(layout, first, end - first), layout, unpack_action);
}

namespace {

std::vector<WorkTimes> times_in(const std::string& run_file, const std::vector<int>& stage_of) {
  RunReader file(run_file);
  std::map<std::pair<int, int>, int> vstage;  // virtual stage by stage and chunk
  std::map<int, int> chunks;
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    vstage[{stage_of[v], chunks[stage_of[v]]++}] = static_cast<int>(v);
  }
  std::vector<std::map<std::string, std::vector<double>>> seconds(stage_of.size());
  const std::vector<StepRow> steps = file.steps();
  for (std::size_t s = warm_up(steps.size()); s < steps.size(); ++s) {
    for (const ActionRow& row : file.actions(steps[s].step)) {
      if (row.action.size() != 1) continue;  // a receive or the finish is no work
      const auto found = vstage.find({row.stage, row.chunk});
      if (found == vstage.end()) {
        throw Error(Stage::options, "run-file.stages", "times",
                    fmt::format("{}: stage {} has a chunk {}, and this plan does not", run_file,
                                row.stage, row.chunk),
                    "measure with the same stages and chunks");
      }
      seconds[found->second][row.action].push_back(row.end - row.start);
    }
  }
  std::vector<WorkTimes> times;
  for (std::size_t v = 0; v < seconds.size(); ++v) {
    auto& of = seconds[v];
    if (of["F"].empty() || (of["B"].empty() && (of["I"].empty() || of["W"].empty()))) {
      throw Error(Stage::options, "run-file.stages", "times",
                  fmt::format("{}: no times of virtual stage {}", run_file, v),
                  "name the run file of a finished run with the same stages and chunks");
    }
    WorkTimes t;
    t.forward = median(of["F"]);
    const bool split = !of["I"].empty() && !of["W"].empty();
    t.dgrad = split ? median(of["I"]) : median(of["B"]) / 2;
    t.wgrad = split ? median(of["W"]) : t.dgrad;
    times.push_back(t);
  }
  return times;
}

}  // namespace

void provide_measured_times() {
  read_measured_times_by(times_in);
}

}  // namespace mw
