// What the command line takes of `schedule`, whose help lists the schedulers that there are.
#include <fmt/format.h>

#include "app/command_line.h"
#include "meshwright/error.h"

namespace mw {

static constexpr double most_time = 1e12;  // in any unit: sums of them stay exact enough

// For the help of `schedule`: only when it is printed are plugins loaded for it.
static std::string schedulers_text(const Arguments& arguments) {
  std::string text = "Schedulers:\n";
  try {
    PluginRegistry plugins = registry_of(arguments);
    plugins.use_all();
    for (const Registration* one : plugins.list(Kind::scheduler))
      text += fmt::format("  {:14}{}\n", one->name, one->doc);
  } catch (const Error& error) {  // no such folder
    text += fmt::format("  {}\n", error.what());
  }
  return text + "Example: meshwright schedule zb-h1 --stages 4 --microbatches 8 --times 1,1.2,0.8";
}

void add_schedule_command(CLI::App& app, Arguments& arguments,
                          std::map<std::string, Command>& commands) {
  CLI::App* command =
      app.add_subcommand("schedule", "draw, check and time a pipeline schedule, without a model");
  ScheduleArguments& a = arguments.schedule;
  command
      ->add_option("NAME", a.name,
                   "a scheduler, built in or of a plugin (below), or a CSV file of compute actions "
                   "(2F0, 1I3, ...)")
      ->required();
  command->add_option("--stages", a.stages, "stages; of a file: its rows")
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--microbatches", a.microbatches, "microbatches of a step")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--chunks", a.chunks, "virtual stages of each stage")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--times", a.times,
                   "of a stage's work on one microbatch: forward, input's gradient, weights' "
                   "gradient (default 1,1,1); a chunk takes its share")
      ->delimiter(',')
      ->expected(1, 3)
      ->check(CLI::Range(1e-12, most_time))
      ->type_name("F,I,W");
  command->add_option("--send", a.send, "from one stage to the next, in the same unit")
      ->check(CLI::Range(0.0, most_time))
      ->type_name("TIME");
  command
      ->add_option("--memory", a.memory,
                   "limit of the activations of a stage, in microbatches of the whole stage")
      ->check(CLI::Range(1e-6, most_time))
      ->type_name("MICROBATCHES");
  command->add_option("--csv", a.csv, "write the order in PyTorch's CSV form")->type_name("FILE");
  command->add_option("--svg", a.svg, "write the drawing")->type_name("FILE");
  command->add_option("--trace", a.trace, "write a Chrome trace")->type_name("FILE");
  command->footer([&arguments] { return schedulers_text(arguments); });
  add_common(command, arguments);
  commands["schedule"] = [](const Arguments& given, Output& o) {
    auto found = registry_of(given);
    return show_schedule(given.schedule, found, o);
  };
}

}  // namespace mw
