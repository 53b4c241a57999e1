// `meshwright runs export`: the tables of runs as one, for programs that read CSV or JSON.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "app/runs_rows.h"
#include "common/files.h"
#include "meshwright/engine/text.h"
#include "record/run_result.h"

namespace mw {
namespace {

// A table of named columns, whose rows may lack some of them.
class Sheet {
 public:
  // The column's number; a new name is a new column.
  std::size_t column(const std::string& name) {
    const auto [at, fresh] = index_.try_emplace(name, names_.size());
    if (fresh) names_.push_back(name);
    return at->second;
  }
  void begin_row() { rows_.emplace_back(); }
  void put(std::size_t column, Json value) {
    std::vector<Json>& row = rows_.back();
    if (row.size() <= column) row.resize(names_.size());
    row[column] = std::move(value);
  }

  std::string csv() const {
    std::string text;
    for (std::size_t c = 0; c < names_.size(); ++c)
      text += (c > 0 ? "," : "") + csv_quoted(names_[c]);
    text += "\n";
    for (const std::vector<Json>& row : rows_) {
      for (std::size_t c = 0; c < names_.size(); ++c)
        text += (c > 0 ? "," : "") + (c < row.size() ? cell(row[c]) : "");
      text += "\n";
    }
    return text;
  }
  // A JSON object a line. What a row lacks is null, and so is NaN, which JSON does not have.
  std::string jsonl() const {
    std::string text;
    for (const std::vector<Json>& row : rows_) {
      std::string line;
      for (std::size_t c = 0; c < names_.size(); ++c) {
        line += (c > 0 ? "," : "{") + json_text(Json(names_[c])) + ":" +
                (c < row.size() ? member(row[c]) : "null");
      }
      text += (line.empty() ? "{" : line) + "}\n";
    }
    return text;
  }

 private:
  static std::string cell(const Json& value) {
    if (value.is_null()) return "";
    if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
    if (value.is_string()) return csv_quoted(value.get<std::string>());
    if (value.is_number_integer()) return std::to_string(value.get<std::int64_t>());
    if (value.is_number()) return fmt::format("{}", real(value.get<double>()));
    return csv_quoted(json_text(value));
  }
  // A real number as pandas and Python read it. A whole number keeps a ".0".
  static std::string real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    const std::string text = format_number(value);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  // JSON has no infinity, but readers take a number beyond all as infinite.
  static std::string member(const Json& value) {
    if (value.is_number_float() && std::isinf(value.get<double>()))
      return value.get<double>() > 0 ? "1e999" : "-1e999";
    if (value.is_number_float() && !std::isnan(value.get<double>()))
      return real(value.get<double>());
    return json_text(value);
  }

  std::vector<std::string> names_;
  std::map<std::string, std::size_t> index_;
  std::vector<std::vector<Json>> rows_;
};

Json value_at(const TableColumn& column, std::uint64_t row) {
  return std::visit([row](const auto& values) { return Json(values[row]); }, column.values);
}

// The values that a sweep set for the run, with their columns.
std::vector<std::pair<std::size_t, Json>> values_of(Sheet& sheet, const RunRow& run) {
  std::vector<std::pair<std::size_t, Json>> values;
  if (!run.fields["values"].is_object()) return values;
  for (const auto& [key, value] : leaves(run.fields["values"]))
    if (!value.is_structured()) values.emplace_back(sheet.column("values." + key), value);
  return values;
}

void add_table(Sheet& sheet, RunReader& reader, const RunRow& run, const char* name) {
  const std::size_t of_name = sheet.column("run"), of_hash = sheet.column("hash");
  const auto values = values_of(sheet, run);
  const Table table = reader.table(name);
  std::vector<std::size_t> columns;
  for (const TableColumn& column : table.columns) columns.push_back(sheet.column(column.name));
  // Series of observers go into the rows of the steps that they belong to.
  std::vector<Series> series;
  std::map<std::int64_t, std::size_t> place;
  std::vector<std::size_t> series_columns;
  if (std::string_view(name) == "steps") {
    const auto steps = reader.series_steps();
    for (std::size_t i = 0; i < steps.size(); ++i) place[steps[i]] = i;
    series = reader.series();
    for (const Series& one : series) series_columns.push_back(sheet.column("series." + one.name));
  }
  const auto steps = table.integers("step");
  for (std::uint64_t r = 0; r < table.rows; ++r) {
    sheet.begin_row();
    sheet.put(of_name, run.entry.name);
    if (!run.entry.hash.empty()) sheet.put(of_hash, run.entry.hash);
    for (const auto& [column, value] : values) sheet.put(column, value);
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      sheet.put(columns[c], value_at(table.columns[c], r));
    const auto at = place.find(steps[r]);
    if (at == place.end()) continue;
    for (std::size_t s = 0; s < series.size(); ++s)
      sheet.put(series_columns[s], series[s].values.at(at->second));
  }
}

void add_summary(Sheet& sheet, const RunRow& run) {
  sheet.begin_row();
  for (const std::string& field : row_fields()) {
    if (field == "values" || field == "experiment") continue;
    const std::size_t column = sheet.column(field == "name" ? "run" : field);
    sheet.put(column, run.fields[field]);
  }
  for (const auto& [column, value] : values_of(sheet, run)) sheet.put(column, value);
  if (!run.fields["experiment"].is_object()) return;
  for (const auto& [key, value] : leaves(run.fields["experiment"]))
    if (!value.is_structured()) sheet.put(sheet.column("experiment." + key), value);
}

int export_runs(const RunsArguments& arguments, Output& output) {
  const OutputFile file{"-o", arguments.out, OutputKind::runs_table};
  check_outputs({file});
  const std::vector<RunRow> rows = rows_of(runs_of(arguments.files));
  Sheet sheet;
  std::vector<std::string> left_out;
  for (const RunRow& run : rows) {
    if (arguments.table == "summary") {
      add_summary(sheet, run);
      continue;
    }
    if (!run.entry.readable()) {
      left_out.push_back(fmt::format("{}: {}{}", run.entry.name, run.entry.status,
                                     run.entry.reason.empty() ? "" : ": " + run.entry.reason));
      continue;
    }
    try {
      RunReader reader(run.entry.path);
      add_table(sheet, reader, run, arguments.table.c_str());
    } catch (const std::exception& error) {
      left_out.push_back(fmt::format("{}: {}", run.entry.name, problem_of(error).message));
    }
  }
  const std::string text = arguments.jsonl ? sheet.jsonl() : sheet.csv();
  if (arguments.out.empty()) {
    output.text(text);
  } else {
    write_output(file, text);
    output.note(fmt::format("{}: written", arguments.out));
  }
  for (const std::string& each : left_out) output.note("left out: " + each);
  return 0;
}

const CommandOf<RunsArguments> runs_export_command{
    {"runs export", 154, "runs as one table for other programs, CSV or a JSON object a line"},
    [](CLI::App& command, RunsArguments& a) {
      command.footer("--csv runs/mixes --table summary -o mixes.csv");
      add_run_files(command, a)->required();
      CLI::Option* csv = command.add_flag("--csv", a.csv, "comma-separated, text quoted (default)");
      command.add_flag("--jsonl", a.jsonl, "a JSON object a line")->excludes(csv);
      command
          .add_option("--table", a.table,
                      "steps: a row a step; memory: a row for each rank and category; "
                      "communication: each step, rank, axis and op; summary: a row a run")
          ->check(CLI::IsMember({"steps", "memory", "communication", "summary"}))
          ->capture_default_str();
      command.add_option("-o,--output", a.out, "write to a file instead of stdout")
          ->type_name("FILE");
    },
    export_runs};

}  // namespace
}  // namespace mw
