// Reads the tables of mw.sweep and of its go, and reports all that is wrong with them.
#include "app/sweep/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "app/sweep/grid.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr std::size_t longest_name = 100;

bool fit_for_a_folder(const std::string& name) {
  return !name.empty() && name.size() <= longest_name && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

// Reads same_loss_as: "dp8", or { "dp8", 1e-6 }, which Lua hands over as a list, or with names.
void read_like(const Json& given, SweepTable& sweep, Problems& problems) {
  const Json* cell = &given;
  const Json* tolerance = nullptr;
  if (given.is_array() && given.size() == 2) {
    cell = &given[0];
    tolerance = &given[1];
  } else if (given.is_object() && !is_function(given)) {
    if (given.contains(unnamed_key)) cell = &given.at(unnamed_key);
    if (given.contains("tolerance")) tolerance = &given.at("tolerance");
  }
  const bool good = cell->is_string() && (tolerance == nullptr || tolerance->is_number());
  if (good && tolerance != nullptr) sweep.tolerance = tolerance->get<double>();
  if (good && (!sweep.tolerance || (*sweep.tolerance > 0 && *sweep.tolerance < 1))) {
    sweep.like = cell->get<std::string>();
    return;
  }
  problems.add(
      Stage::options, "option.value", "same_loss_as",
      fmt::format("same_loss_as: got {}", lua_text(given)),
      "the name of a cell or a value of an axis, as text; or { that, tolerance = 1e-5 }, a "
      "relative difference above 0 and below 1");
}

void read_repeats(const Json& given, SweepTable& sweep, Problems& problems) {
  Json count = given;
  std::string seed = "next";
  bool good = true;
  if (given.is_object() && !is_function(given)) {
    count = given.value(unnamed_key, Json());
    seed = given.contains("seed") && given["seed"].is_string() ? given["seed"].get<std::string>()
                                                               : "?";
    good = seed == "next" || seed == "same";
  }
  const auto number = whole_number(count);
  if (good && number && *number >= 1 && *number <= 1000) {
    sweep.repeats = static_cast<int>(*number);
    sweep.same_seed = seed == "same";
    return;
  }
  problems.add(Stage::options, "option.value", "repeats",
               fmt::format("repeats: got {}", lua_text(given)),
               "a number from 1 to 1000: each run has the next seed; or { 3, seed = \"same\" }");
}

}  // namespace

const Options& sweep_options() {
  static const Options options =
      Options()
          .text("name", "of the sweep; its folder is runs/NAME")
          .table("base", "the experiment that all cells share: keys of mw.train")
          .any("over",
               "the axes: { key = { values }, … }; a list of such tables adds their grids up")
          .optional()
          .function("skip", "called with each cell; returns why it is not run, or nothing")
          .optional()
          .any("same_loss_as",
               "a cell's name or a value of an axis whose losses all others must have, or { that, "
               "tolerance = 1e-5 }")
          .optional()
          .text("baseline", "what the table's last columns compare with; same_loss_as if left out")
          .optional()
          .any("repeats", "runs of each cell, with the next seeds, or { 3, seed = \"same\" }")
          .fallback(1)
          .boolean("predict", "predict the cells, in this process, and run none")
          .fallback(false);
  return options;
}

const Options& go_options() {
  static const Options options =
      Options()
          .integer("workers",
                   "cells that run at a time; as many as memory and cores take if left "
                   "out")
          .range(1, 4096)
          .optional()
          .any("only", "the cells whose name has this in it, or matches with * and ?; or a list")
          .optional()
          .choice("retry", {"failed", "disturbed", "all"},
                  "runs these again, although they have a result")
          .optional()
          .integer("order",
                   "the seed of the random order in which cells run, a round of all mixes for each "
                   "seed; 0: as the grid has them")
          .range(0, 2147483647)
          .fallback(1)
          .integer("reruns",
                   "how often a cell runs again, after the others, if other programs had the cores "
                   "during its run")
          .range(0, 100)
          .fallback(2)
          .number("time", "what a cell may take before it is ended")
          .range(0.001, 1e9)
          .unit("seconds")
          .optional()
          .bytes("memory", "what a cell's process may allocate")
          .at_least(1)
          .optional()
          .boolean("dry", "say what would run, with what is predicted, and run nothing")
          .fallback(false)
          .boolean("predict", "predict the cells, in this process, and run none")
          .fallback(false)
          .boolean("quiet", "no lines of progress and no table")
          .fallback(false)
          .text("shard", "\"1/4\": this process runs every fourth cell")
          .optional()
          .choice("print", {"sbatch"}, "print a job-array script for Slurm, and run nothing")
          .optional();
  return options;
}

SweepTable read_sweep(const Json& table, Problems& problems) {
  SweepTable sweep;
  const Values values = sweep_options().read(table, "", problems);
  const auto has = [&](const char* key) { return values.has(key) && !values.at(key).is_null(); };
  if (has("name")) {
    sweep.name = values.text("name");
    if (!fit_for_a_folder(sweep.name)) {
      problems.add(Stage::options, "option.value", "name",
                   fmt::format("name: {} cannot be a folder's name", quote(sweep.name)),
                   "letters, digits, \"_\", \"-\" and \".\", at most 100 of them");
    }
  }
  if (has("base")) sweep.base = values.at("base");
  sweep.over = Json::object();
  if (has("over")) {
    sweep.over = values.at("over");
    check_grid(sweep.over, problems);
  }
  if (has("base")) check_base(sweep.base, problems);
  if (has("skip")) sweep.skip = values.at("skip");
  if (has("same_loss_as")) read_like(values.at("same_loss_as"), sweep, problems);
  if (has("baseline")) sweep.baseline = values.text("baseline");
  if (has("repeats")) read_repeats(values.at("repeats"), sweep, problems);
  if (has("predict")) sweep.predict = values.flag("predict");
  return sweep;
}

GoOptions read_go(const Json& given, const Json& command) {
  Json both = given.is_object() ? given : Json::object();
  for (const auto& [key, value] : command.items()) both[key] = value;
  Problems problems;
  const Values values = go_options().read(both, "", problems);
  GoOptions go;
  const auto has = [&](const char* key) { return values.has(key) && !values.at(key).is_null(); };
  if (has("workers")) go.workers = values.int32("workers");
  if (has("retry")) go.retry = values.text("retry");
  if (has("order")) go.order = values.integer("order");
  if (has("reruns")) go.reruns = values.int32("reruns");
  if (has("time")) go.time = values.number("time");
  if (has("memory")) go.memory = values.integer("memory");
  if (has("print")) go.print = values.text("print");
  go.dry = has("dry") && values.flag("dry");
  go.predict = has("predict") && values.flag("predict");
  go.quiet = has("quiet") && values.flag("quiet");
  if (has("only")) {
    const Json& only = values.at("only");
    for (const Json& pattern : only.is_array() ? only : Json::array({only})) {
      if (pattern.is_string()) {
        go.only.push_back(pattern.get<std::string>());
      } else {
        problems.add(Stage::options, "option.type", "only",
                     fmt::format("only must be text; got {}", describe(pattern)));
      }
    }
  }
  if (has("shard")) {
    const std::string text = values.text("shard");
    int end = 0;
    const bool read = std::sscanf(text.c_str(), "%d/%d%n", &go.shard, &go.shards, &end) == 2;
    if (!read || end != static_cast<int>(text.size()) || go.shard < 1 || go.shard > go.shards) {
      problems.add(Stage::options, "option.value", "shard",
                   fmt::format("shard: got {}", quote(text)), "for example 1/4, up to 4/4");
    }
  }
  problems.throw_if_any();
  return go;
}

}  // namespace mw
