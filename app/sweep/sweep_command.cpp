// The command sweep, which runs a script's sweeps, and cell, which its processes run.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "app/script_command.h"
#include "common/files.h"
#include "meshwright/engine/text.h"

namespace mw {

void look_for_sweeps(const AppHost& host, const std::string& script, std::size_t made) {
  if (made > 0) return;
  const std::string nothing = script + ": nothing was swept: ";
  if (std::count(host.tried().begin(), host.tried().end(), "sweep") > 0)
    host.refuse_caught(nothing, "sweep");
  throw Error(Stage::script, "script.no-verb", "", nothing + "the script does not call mw.sweep",
              "give a script that calls mw.sweep { … }");
}

namespace {

// The arguments of `sweep SCRIPT` in the script of a Slurm job.
std::vector<std::string> words_of(const ScriptArguments& arguments) {
  std::vector<std::string> words;
  const auto add = [&](const std::string& option, const Json& value) {
    words.push_back(option);
    words.push_back(value.is_string() ? value.get<std::string>() : json_text(value));
  };
  for (const std::string& setting : arguments.settings) add("--set", setting);
  for (const std::string& folder : arguments.plugin_path) add("--plugin-path", folder);
  if (arguments.host.force) words.emplace_back("--force");
  arguments.sandbox.add_words(words);
  for (const char* key : {"only", "retry", "order", "reruns", "time", "memory"}) {
    if (!arguments.go.contains(key)) continue;
    const Json& value = arguments.go[key];
    for (const Json& one : value.is_array() ? value : Json::array({value}))
      add(std::string("--") + key, one);
  }
  if (!arguments.words.empty()) words.emplace_back("--");
  words.insert(words.end(), arguments.words.begin(), arguments.words.end());
  return words;
}

}  // namespace

AppHost::Sweeping sweeping_of(const ScriptArguments& arguments) {
  return {arguments.go,
          {{"settings", arguments.settings},
           {"plugin_path", arguments.plugin_path},
           {"words", arguments.words},
           {"go", arguments.go},
           {"force", arguments.host.force}},
          words_of(arguments)};
}

namespace {

struct CellArguments : Arguments {
  std::string file;
};

// Runs the cell of a sweep that a file describes. Only the sweep's own processes call this.
int run_sweep_cell(const CellArguments& given, Output& output) {
  const Json order = read_json(given.file);
  ScriptArguments arguments;
  arguments.sandbox = given.sandbox;
  CellOrder cell;
  try {
    arguments.script = order.at("script").get<std::string>();
    arguments.settings = order.value("settings", arguments.settings);
    arguments.plugin_path = order.value("plugin_path", arguments.plugin_path);
    arguments.words = order.value("words", arguments.words);
    arguments.go = order.value("go", arguments.go);
    arguments.host.force = order.value("force", false);
    cell = {order.value("sweep", ""), order.value("name", ""), order.value("hash", ""),
            order.value("folder", ""), order.value("traces", true)};
  } catch (const Json::exception&) {
    throw Error(Stage::script, "file.format", "", given.file + ": this is no cell of a sweep",
                "meshwright sweep SCRIPT makes them");
  }
  const auto text_of = [&] {
    // The text as it was when the sweep began: the script may have been edited since.
    ScriptText text = read_script(cell.folder + "/script.lua");
    const std::filesystem::path script(arguments.script);
    std::error_code error;
    text.name = arguments.script;
    text.is_file = std::filesystem::is_regular_file(script, error);
    text.folder = text.is_file && script.has_parent_path() ? script.parent_path() : ".";
    text.copies = cell.folder;
    return text;
  };
  const int code = run_sweeping(arguments, {cell, text_of}, output);
  if (code != 0) return code;
  throw Error(Stage::script, "sweep.changed", "",
              fmt::format("the script does not come to the sweep {} when it is run again",
                          quote(cell.sweep)),
              "a sweep's script must make the same cells whenever it is run");
}

// Adds an option of sweep:go, whose value is handed on as it is: read_go() checks it.
void add_go_option(CLI::App& command, ScriptArguments& arguments, const std::string& key,
                   const std::string& about, const std::string& type) {
  command
      .add_option_function<std::string>(
          "--" + key,
          [&arguments, key](const std::string& text) {
            Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
            arguments.go[key] = value.is_number() && key != "shard" ? value : Json(text);
          },
          about)
      ->type_name(type);
}

const CommandOf<ScriptArguments> sweep_command{
    {"sweep", 70,
     "run a script's sweeps, each cell in its own process; cells with a result do not run "
     "again",
     Command::scripted},
    [](CLI::App& sweep, ScriptArguments& a) {
      add_script(sweep, a, "scripts/ablations/mixes.lua --dry");
      add_go_option(sweep, a, "workers",
                    "cells that run at a time; as many as memory and cores take if left out", "N");
      add_go_option(sweep, a, "retry", "run these again: failed, disturbed, or all", "WHICH");
      add_go_option(sweep, a, "order",
                    "the seed of the random order of cells; 0: as the grid has them", "SEED");
      add_go_option(
          sweep, a, "reruns",
          "how often a cell runs again, after the others, if other programs had the cores "
          "during its run",
          "N");
      add_go_option(sweep, a, "shard", "run every n-th cell from the i-th on", "I/N");
      add_go_option(sweep, a, "time", "what a cell may take before it is ended", "SECONDS");
      add_go_option(sweep, a, "memory", "what a cell's process may allocate: 8GiB", "BYTES");
      add_go_option(sweep, a, "print", "sbatch: print a job-array script for Slurm", "WHAT");
      sweep
          .add_option_function<std::string>(
              "--only",
              [&a](const std::string& text) {
                if (!a.go.contains("only")) a.go["only"] = Json::array();
                a.go["only"].push_back(text);
              },
              "the cells that have this in their name, or match with * and ?; may be repeated")
          ->allow_extra_args(false)
          ->type_name("PATTERN");
      const auto flag = [&](const char* key, const char* about) {
        sweep.add_flag_callback(
            std::string("--") + key, [&a, key] { a.go[key] = true; }, about);
      };
      flag("dry", "list the cells, with what is predicted and what would run");
      flag("predict", "predict the cells, in this process, and run none");
      add_force(sweep, a);
      add_common(sweep, a);
    },
    [](const ScriptArguments& a, Output& output) {
      return run_sweeping(a, {std::nullopt, [&] { return read_script(a.script); }}, output);
    }};

const CommandOf<CellArguments> cell_command{{"cell", 71, "one cell, for the processes of sweep"},
                                            [](CLI::App& command, CellArguments& a) {
                                              command.group("");
                                              command.add_option("FILE", a.file)->required();
                                            },
                                            run_sweep_cell};

}  // namespace
}  // namespace mw
