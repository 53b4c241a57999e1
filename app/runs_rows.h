// Runs as rows of fields: what lists show, conditions ask for and exports write.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "app/command.h"
#include "meshwright/json.h"
#include "record/run_set.h"

namespace mw {

// What the commands `runs list`, show, compare, export and tail take. A file is a run file, the
// folder of a run, of a sweep, or any folder of these (record/run_set.h).
struct RunsArguments : Arguments {
  std::vector<std::string> files;  // of `runs list`: none stands for the folder "runs"
  std::string where, sort, baseline, table = "steps", out;
  bool reverse = false, jsonl = false, csv = false, follow = false;
  bool account = false;  // `runs show --where`
  int last = 10;         // steps that `runs tail` shows
};
CLI::Option* add_run_files(CLI::App& command, RunsArguments& arguments);

struct RunRow {
  RunEntry entry;
  Json fields;  // value of each of row_fields(); null where the run has none
};

// The names of all fields that a row may have.
const std::vector<std::string>& row_fields();

// A row for each run; one that cannot be read has its status and reason. Never throws for what a
// file holds.
std::vector<RunRow> rows_of(RunSet set);

// The runs that the files of a command line mean.
RunSet runs_of(const std::vector<std::string>& files);

// Calls `read`, which reads this run file and may find anything in it. What is thrown names the
// file.
void reading(const std::filesystem::path& file, const std::function<void()>& read);

// What a dotted key leads to; null if it leads nowhere.
Json field_at(const Json& fields, const std::string& key);

// A run's line of text: name, mix, what became of it, its loss, speed and peak.
std::string line_of(const Json& result);

// A field's value as text: "2.3410", "1.25M", "312 MiB"; "-" if it is null.
std::string field_text(const std::string& field, const Json& value);

}  // namespace mw
