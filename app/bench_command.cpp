// The command bench, which holds predictions against published steps.
#include "app/script_command.h"

namespace mw {
namespace {

// Every row of the tables of tests/reference as a plan on its cluster; the script's words say
// which.
int bench_prediction(const ScriptArguments& arguments, Output&) {
  ScriptArguments script = arguments;
  script.script = (lua_library().parent_path() / "reference/prediction.lua").string();
  Output output(/*json=*/false, /*quiet=*/true);
  return run_script(script, "plan", output);
}

const CommandOf<Arguments> bench_commands =
    command_group({"bench", 160, "measure this project against what was published"});

const CommandOf<ScriptArguments> bench_prediction_command{
    {"bench prediction", 161,
     "predict the steps of published tables, each row as a plan on its cluster: the error "
     "of each table"},
    [](CLI::App& command, ScriptArguments& a) {
      command.add_option("TABLE", a.words, "tables, all if none is named");
      command.add_flag_callback(
          "--rows", [&a] { a.words.emplace_back("rows"); }, "each row too");
      command.add_flag_callback(
          "--json", [&a] { a.words.emplace_back("json"); }, "a line of JSON a row");
      command.footer("Example: meshwright bench prediction korthikanti5 --rows");
    },
    bench_prediction};

}  // namespace
}  // namespace mw
