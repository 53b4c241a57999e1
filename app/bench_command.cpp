// The commands of bench: predictions beside published steps, and training beside stock PyTorch.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "app/script_command.h"

namespace mw {
namespace {

// Runs a script that plans every row of the tables of tests/reference on its cluster. The command
// line's words say which tables.
int bench_prediction(const ScriptArguments& arguments, Output&) {
  ScriptArguments script = arguments;
  script.script = (lua_library().parent_path() / "reference/prediction.lua").string();
  Output output(/*json=*/false, /*quiet=*/true);
  return run_script(script, "plan", output);
}

const CommandOf<Arguments> bench_commands = command_group(
    {"bench", 160, "compare Meshwright with published measurements and with stock PyTorch"});

const CommandOf<ScriptArguments> bench_prediction_command{
    {"bench prediction", 161,
     "predict the steps of published tables, each row as a plan on its cluster: the error "
     "of each table"},
    [](CLI::App& command, ScriptArguments& a) {
      command.add_option("TABLE", a.words, "tables, all if none is named");
      command.add_flag_callback(
          "--rows", [&a] { a.words.emplace_back("rows"); }, "each row too");
      command.add_flag_callback(
          "--ablate", [&a] { a.words.emplace_back("ablate"); },
          "in place of tables, stacks and clusters are named: what each key of them moves, if it "
          "is left out");
      command.add_flag_callback(
          "--json", [&a] { a.words.emplace_back("json"); }, "a line of JSON a row");
      command.footer("Example: meshwright bench prediction korthikanti5 --rows");
    },
    bench_prediction};

struct TrainArguments : Arguments {
  std::vector<std::string> passed;  // options for bench/train, as the command line has them
};

// This process becomes the Python program of the folder bench/train, which runs both sides.
int bench_train(const TrainArguments& arguments, Output& output) {
  const std::filesystem::path share = lua_library().parent_path(), program = share / "bench/train";
  if (!std::filesystem::exists(program / "__main__.py")) {
    throw Error(Stage::environment, "file.missing", "",
                program.string() + " is not there, which bench train runs",
                "install the kit anew, or call ./meshwright of the repository");
  }
  std::vector<std::string> words = {"python3",
                                    "-IB",
                                    program.string(),
                                    "--meshwright",
                                    std::filesystem::read_symlink("/proc/self/exe").string(),
                                    "--data",
                                    (share / "text/gcide.txt").string()};
  words.insert(words.end(), arguments.passed.begin(), arguments.passed.end());
  if (arguments.json) words.emplace_back("--json");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  output.give_stdout_back();
  ::execvp(argv[0], argv.data());
  throw Error(Stage::environment, "program.missing", "",
              std::string("python3 cannot be started: ") + std::strerror(errno),
              "bench train needs Python 3.9 or later in PATH, with no packages");
}

// An option whose word goes to bench/train as it is.
CLI::Option* pass_on(CLI::App& command, TrainArguments& a, const std::string& name,
                     const std::string& about) {
  const auto add = [&a, name](const std::string& word) { a.passed.push_back(name + "=" + word); };
  return command.add_option_function<std::string>(name, add, about);
}

void add_train_options(CLI::App& command, TrainArguments& a) {
  pass_on(
      command, a, "--sizes",
      "mini, tiny, small, wide (hidden 64, 256, 512, 1024) or long, several with commas; else tiny")
      ->type_name("NAMES");
  pass_on(command, a, "--mixes",
          "mixes with commas, or all, main, few, pipelines, context for several; else main")
      ->type_name("NAMES");
  pass_on(command, a, "--rounds", "pairs of each mix, whose medians count; else 3")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  pass_on(command, a, "--steps",
          "steps of each run (default: 20 for mini, 8 for tiny, 5 for small, 4 for wide and long)")
      ->check(CLI::Range(3, 10000))
      ->type_name("N");
  pass_on(command, a, "--baseline",
          "a Python with the packages of bench/train/requirements.txt (torch 2.15.0); without it, "
          "only Meshwright is measured")
      ->type_name("PYTHON");
  pass_on(command, a, "--others",
          "repeat a pair if other programs kept more cores busy (default 0.1)")
      ->check(number_in(0.0, 1e6))
      ->type_name("CORES");
  pass_on(command, a, "--retries", "how often a disturbed pair is repeated at most (default 2)")
      ->check(CLI::Range(0, 100))
      ->type_name("N");
  pass_on(command, a, "--out", "write bench.json and a chart of each size there, after every pair")
      ->type_name("FOLDER");
  pass_on(command, a, "--page", "fill each size's table of this page, and draw its chart beside it")
      ->type_name("FILE");
  command.add_flag_callback(
      "--check", [&a] { a.passed.emplace_back("--check"); }, "exit 1 if a target is missed");
  add_json(command, a);
  command.footer("Example: meshwright bench train --baseline VENV/bin/python --mixes one,dp2,tp2");
}

const CommandOf<TrainArguments> bench_train_command{
    {"bench train", 162,
     "train mixes beside stock PyTorch, in turns on this machine: speed, CPU, start-up, memory"},
    add_train_options,
    bench_train};

}  // namespace
}  // namespace mw
