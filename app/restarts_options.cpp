// What `meshwright run` takes about starting a script again, and the words of the processes that it
// starts for that.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "app/command_line.h"
#include "app/restarts.h"
#include "meshwright/engine/text.h"

namespace mw {

void add_restarts(CLI::App* run, Arguments& arguments) {
  Restarts& a = arguments.restarts;
  CLI::Option* most = run->add_option(
      "--max-restarts", a.most,
      "start the script again after a run that failed, so many times at most; a training with a "
      "checkpoint goes on from its last one");
  most->check(CLI::Range(0, 1 << 20))->type_name("N");
  run->add_option("--restart-with", a.settings,
                  "a --set of these starts alone, such as a plan for fewer ranks; may be repeated")
      ->allow_extra_args(false)
      ->needs(most)
      ->type_name("KEY=VALUE");
  run->add_option("--launcher", a.launcher,
                  "what starts the processes of a run that may be started again: \"mpirun -n 8\"")
      ->needs(most)
      ->type_name("COMMAND");
  run->add_option("--attempt", arguments.attempt)->group("");
}

// The words of the processes that are started for it.
int run_restarting(const Arguments& arguments, Output& output) {
  if (arguments.script == "-") {
    throw Error(Stage::script, "usage.option", "",
                "--max-restarts: a script from standard input cannot be run twice",
                "write it into a file");
  }
  if (!arguments.restarts.launcher.empty() && arguments.processes.processes > 0) {
    throw Error(
        Stage::script, "usage.option", "",
        fmt::format("--launcher {} starts the run's processes, and --processes {} would too",
                    quote(arguments.restarts.launcher), arguments.processes.processes),
        "leave one of the two out");
  }
  std::vector<std::string> words = {"run", arguments.script};
  const auto add = [&](const char* option, const std::vector<std::string>& values) {
    for (const std::string& value : values) words.insert(words.end(), {option, value});
  };
  add("--set", arguments.settings);
  add("--plugin-path", arguments.plugin_path);
  if (!arguments.processes.communicator.empty())
    add("--communicator", {arguments.processes.communicator});
  Restarts restarts = arguments.restarts;
  restarts.several = arguments.processes.processes > 1;
  if (restarts.several) add("--processes", {std::to_string(arguments.processes.processes)});
  if (arguments.force) words.emplace_back("--force");
  if (arguments.json) words.emplace_back("--json");
  if (arguments.quiet) words.emplace_back("--quiet");
  if (!arguments.words.empty()) words.emplace_back("--");
  words.insert(words.end(), arguments.words.begin(), arguments.words.end());
  output.give_stdout_back();
  return run_with_restarts(restarts, words, [&](const std::string& text) { output.note(text); });
}

}  // namespace mw
