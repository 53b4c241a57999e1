// Reads the fields of runs for lists, comparisons and exports.
#include "app/runs_rows.h"

#include <fmt/format.h>

#include <cmath>

#include "app/progress.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "record/run_result.h"

namespace mw {

CLI::Option* add_run_files(CLI::App& command, RunsArguments& arguments) {
  command.footer("Example: meshwright runs " + command.get_name() + " " + command.get_footer());
  return command.add_option("FILE", arguments.files,
                            "a run file, the folder of a run or of a sweep, or a folder of these");
}

const std::vector<std::string>& row_fields() {
  static const std::vector<std::string> fields = {"name",
                                                  "mix",
                                                  "status",
                                                  "reason",
                                                  "steps",
                                                  "loss",
                                                  "first_loss",
                                                  "held_out_loss",
                                                  "grad_norm",
                                                  "step_seconds",
                                                  "tokens_per_second",
                                                  "cpu_seconds_per_step",
                                                  "mfu",
                                                  "bubble_fraction",
                                                  "startup_seconds",
                                                  "others_cores",
                                                  "disturbed",
                                                  "peak_bytes",
                                                  "predicted_peak_bytes",
                                                  "ranks",
                                                  "seed",
                                                  "hash",
                                                  "hash_without_seed",
                                                  "plan_hash",
                                                  "created",
                                                  "host",
                                                  "path",
                                                  "sweep",
                                                  "values",
                                                  "experiment"};
  return fields;
}

std::vector<RunRow> rows_of(RunSet set) {
  std::vector<RunRow> rows;
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  for (RunEntry& entry : set.runs) {
    RunRow row;
    Json& f = row.fields;
    for (const std::string& field : row_fields()) f[field] = nullptr;
    if (entry.readable()) {
      try {
        RunReader reader(entry.path);
        const RunHead head = reader.head();
        f.update(run_numbers(reader));
        f["mix"] = or_null(head.mix());
        f["plan_hash"] = or_null(head.plan_hash);
        f["host"] = or_null(head.host);
        f["hash_without_seed"] = or_null(head.hash_without_seed);
        f["seed"] = head.seed;
        f["experiment"] = experiment_of(reader);
      } catch (const std::exception& error) {
        entry.status = "unreadable";
        entry.reason = problem_of(error).message;
      }
    }
    f["name"] = entry.name;
    f["status"] = entry.status;
    f["reason"] = or_null(entry.reason);
    f["hash"] = or_null(entry.hash);
    f["created"] = or_null(entry.created);
    f["path"] = or_null(entry.path.string());
    f["sweep"] = or_null(entry.sweep);
    if (!entry.values.empty()) {
      f["values"] = Json::object();
      for (const auto& [key, value] : entry.values) f["values"][key] = value;
    }
    row.entry = std::move(entry);
    rows.push_back(std::move(row));
  }
  return rows;
}

RunSet runs_of(const std::vector<std::string>& files) {
  if (files.empty()) return find_runs({default_runs()});
  return find_runs({files.begin(), files.end()});
}

void reading(const std::filesystem::path& file, const std::function<void()>& read) {
  constexpr const char* hint = "is it whole, and a run file of this version?";
  try {
    read();
  } catch (const Stopped&) {
    throw;
  } catch (const Error& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) {
      const bool of_file =
          problem.code.starts_with("run-file.") || problem.code.starts_with("schedule.");
      if (of_file && problem.message.find(file.string()) == std::string::npos)
        problem.message = fmt::format("run file {}: {}", file.string(), problem.message);
    }
    throw Error(std::move(problems));
  } catch (const std::exception& error) {  // the file's tables are not as any run writes them
    throw Error(
        Stage::run, "run-file.damaged", "",
        fmt::format("run file {}: cannot make sense of it: {}", file.string(), error.what()), hint);
  }
}

Json field_at(const Json& fields, const std::string& key) {
  if (fields.is_object() && fields.contains(key)) return fields[key];
  for (const auto& [name, value] : leaves(fields)) {
    if (name == key) return value;
  }
  return nullptr;
}

std::string field_text(const std::string& field, const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) return json_text(value);
  const double number = value.get<double>();
  if (!std::isfinite(number)) return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
  if (field.ends_with("_bytes") || field == "bytes" || field.starts_with("memory.") ||
      field.starts_with("bytes "))
    return format_bytes(number);
  if (field == "tokens_per_second") return format_count(number);
  if (field == "others_cores") return fmt::format("{:.2f}", number);
  if (field == "mfu" || field == "bubble_fraction") return fmt::format("{:.1f} %", 100 * number);
  if (field.ends_with("seconds") || field.ends_with("seconds_per_step"))
    return number < 1 ? fmt::format("{:.1f} ms", 1e3 * number) : fmt::format("{:.3f} s", number);
  if (field.starts_with("loss") || field.ends_with("_loss") || field == "grad_norm")
    return fmt::format("{:.4f}", number);
  return value.is_number_integer() ? std::to_string(value.get<std::int64_t>())
                                   : format_number(number);
}

std::string line_of(const Json& result) {
  const auto text = [&](const char* field) {
    return field_text(field, result.contains(field) ? result[field] : Json());
  };
  std::string line = fmt::format("{}: {}", text("name"), text("status"));
  if (result.contains("steps") && result["steps"].is_number()) {
    line += fmt::format(" after {}", plural(result["steps"].get<std::int64_t>(), "step"));
    Json loss;
    if (result.contains("losses") && !result["losses"].empty()) loss = result["losses"].back();
    line += fmt::format(", loss {}, {} tokens/s, peak {}", field_text("loss", loss),
                        text("tokens_per_second"), text("peak_bytes"));
  }
  if (result.contains("reason") && result["reason"].is_string())
    line += " (" + result["reason"].get<std::string>() + ")";
  return line + "\n";
}

}  // namespace mw
