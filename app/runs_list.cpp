// `meshwright runs list`: a line for each run, of those that meet a condition, sorted by a field.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "app/runs_rows.h"
#include "app/texts.h"
#include "lua/script.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

// Keeps the rows that meet the condition. Drops rows that lack a field of the condition, and tells
// how many there were.
void keep_where(std::vector<RunRow>& rows, const std::string& where, Output& output) {
  Predicate wanted("--where", where, {row_fields().begin(), row_fields().end()});
  std::int64_t lacking = 0;
  std::erase_if(rows, [&](const RunRow& row) {
    const Predicate::Answer answer = wanted(row.fields);
    if (answer == Predicate::Answer::lacks) ++lacking;
    return answer != Predicate::Answer::yes;
  });
  if (lacking > 0)
    output.note(
        fmt::format("{} left out: they lack what --where asks for", plural(lacking, "run")));
}

// NaN and null come last in either order.
bool sorts_last(const Json& value) {
  return value.is_null() || (value.is_number() && std::isnan(value.get<double>()));
}

void sort_by(std::vector<RunRow>& rows, const std::string& key, bool reverse) {
  const std::string head = key.substr(0, key.find_first_of(".["));
  const auto& known = row_fields();
  if (std::find(known.begin(), known.end(), head) == known.end()) {
    throw Error(Stage::options, "sort.field", "",
                fmt::format("--sort {}: a run has no field {}", key, quote(head)),
                nearest_or_all(head, known));
  }
  std::vector<std::pair<std::optional<Json>, RunRow>> keyed;
  for (RunRow& row : rows) {
    Json value = field_at(row.fields, key);
    std::optional<Json> of;
    if (!sorts_last(value)) of = std::move(value);
    keyed.emplace_back(std::move(of), std::move(row));
  }
  const auto before = [&](const auto& a, const auto& b) {
    if (!a.first || !b.first) return a.first.has_value() && !b.first.has_value();
    return reverse ? *b.first < *a.first : *a.first < *b.first;
  };
  std::stable_sort(keyed.begin(), keyed.end(), before);
  rows.clear();
  for (auto& [value, row] : keyed) rows.push_back(std::move(row));
}

int list_runs(const RunsArguments& arguments, Output& output) {
  std::vector<RunRow> rows = rows_of(runs_of(arguments.files));
  const std::size_t all = rows.size();
  if (!arguments.where.empty()) keep_where(rows, arguments.where, output);
  if (!arguments.sort.empty()) {
    sort_by(rows, arguments.sort, arguments.reverse);
  } else if (arguments.reverse) {
    std::reverse(rows.begin(), rows.end());
  }
  Json fields = Json::array();
  for (const RunRow& row : rows) {
    Json line = {{"kind", "run"}};
    line.update(row.fields);
    output.result(line);
    fields.push_back(row.fields);
  }
  if (!output.json())
    output.text(rows.empty()
                    ? fmt::format("none of {}", plural(static_cast<std::int64_t>(all), "run"))
                    : from_library("runs_list", fields).get<std::string>());
  return 0;
}

const CommandOf<Arguments> runs_commands =
    command_group({"runs", 150, "finished and current runs: list, show, compare, export, tail"});

const CommandOf<RunsArguments> runs_list_command{
    {"runs list", 151, "what became of each run, a line each"},
    [](CLI::App& command, RunsArguments& a) {
      command.footer("runs --where 'loss < 2.5 and status == \"done\"' --sort loss");
      add_run_files(command, a)->option_text("FILE … (default: runs)");
      command
          .add_option("--where", a.where,
                      "a condition in Lua over a run's fields: name, mix, status, loss, "
                      "tokens_per_second, peak_bytes, values, experiment, …")
          ->type_name("CONDITION");
      command.add_option("--sort", a.sort, "by a field: loss, created, experiment.optimizer.lr")
          ->type_name("FIELD");
      command.add_flag("--reverse", a.reverse, "the largest, or the latest, first");
      add_json(command, a);
    },
    list_runs};

}  // namespace
}  // namespace mw
