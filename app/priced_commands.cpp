// The options that say what plans are priced for, and the command that holds predictions against
// published steps.
#include "app/command_line.h"

namespace mw {

// What plans are priced for: the same keys as a script's own.
void add_priced_for(CLI::App* command, Arguments& arguments) {
  command
      ->add_option(
          "--cluster", arguments.cluster,
          "price it for this cluster (a name of clusters/, or a file), not for this machine")
      ->type_name("NAME");
  command->add_option("--nodes", arguments.nodes, "of the cluster")
      ->check(CLI::Range(1, 1 << 24))
      ->needs("--cluster");
  command
      ->add_option("--stack", arguments.stack,
                   "the software on the cluster: megatron-core, fsdp2, …; this project's own if "
                   "left out")
      ->type_name("NAME");
}

void add_bench_command(CLI::App& app, Arguments& arguments,
                       std::map<std::string, Command>& commands) {
  CLI::App* bench = app.add_subcommand("bench", "measure this project against what was published");
  bench->require_subcommand(1);
  CLI::App* prediction = bench->add_subcommand(
      "prediction",
      "predict the steps of published tables, each row as a plan on its cluster: the error of each "
      "table");
  prediction->add_option("TABLE", arguments.words, "tables, all if none is named");
  prediction->add_flag_callback(
      "--rows", [&arguments] { arguments.words.emplace_back("rows"); }, "each row too");
  prediction->add_flag_callback(
      "--json", [&arguments] { arguments.words.emplace_back("json"); }, "a line of JSON a row");
  prediction->footer("Example: meshwright bench prediction korthikanti5 --rows");
  commands["bench prediction"] = [](const Arguments& a, Output& o) {
    return bench_prediction(a, o);
  };
}

}  // namespace mw
