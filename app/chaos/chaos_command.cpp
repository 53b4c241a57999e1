// `meshwright chaos`: reads what is asked for, and has a package of Python disturb the script's
// training by faults of all kinds again and again, and say what the training makes of them.
#include <string>
#include <vector>

#include "app/script_command.h"
#include "common/python.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/interrupt.h"

namespace mw {
namespace {

struct ChaosArguments : Arguments {
  std::string script, launcher, log;
  std::vector<std::string> kinds;  // names; empty: all that apply
  double minutes = 0;              // no further fault after that time; 0: no limit
  std::int64_t faults = 0;         // the largest number of faults; 0: no limit
  double every = 5;  // mean seconds between faults; each is drawn from 0.5 to 1.5 times that
  std::uint64_t seed = 1;
  double timeout = 10;           // seconds that ranks wait for each other
  std::int64_t checkpoints = 5;  // steps between checkpoints
};

int run_chaos(const ChaosArguments& given, Output& output) {
  check_starts_again("chaos", given.script, given.launcher, given.processes);
  stop_on_signals();
  output.give_stdout_back();
  const Json answer = answer_of({.name = "meshwright_chaos",
                                 .asked_by = "chaos",
                                 .does = "disturbs trainings",
                                 .needs = "python3 (3.9 or later)",
                                 .speaks = true},
                                {{"program", program_path().string()},
                                 {"json", output.json()},
                                 {"quiet", output.quiet()},
                                 {"script", given.script},
                                 {"words", given.words},
                                 {"settings", given.settings},
                                 {"plugin_path", given.plugin_path},
                                 {"processes", given.processes.processes},
                                 {"communicator", given.processes.communicator},
                                 {"launcher", given.launcher},
                                 {"log", given.log},
                                 {"kinds", given.kinds},
                                 {"minutes", given.minutes},
                                 {"faults", given.faults},
                                 {"every", given.every},
                                 {"seed", given.seed},
                                 {"timeout", given.timeout},
                                 {"checkpoints", given.checkpoints}});
  return answer["exit_code"];
}

void add_faults(CLI::App& command, ChaosArguments& a) {
  command.add_option("--minutes", a.minutes, "no further fault after so many minutes")
      ->check(number_in(0.01, 1e6))
      ->type_name("M");
  command
      .add_option("--faults", a.faults,
                  "the largest number of faults; without it, one of each kind")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N");
  command
      .add_option(
          "--every", a.every,
          "mean seconds between two faults (5); each time is drawn from 0.5 to 1.5 times that")
      ->check(number_in(0.0, 1e6))
      ->type_name("SECONDS");
  command.add_option("--seed", a.seed, "draws kinds, ranks and moments (1)")->type_name("S");
  command
      .add_option(
          "--kinds", a.kinds,
          "kinds of faults, with commas between; by default all that can happen to the training")
      ->delimiter(',')
      ->type_name("A,B");
  command.add_option("--timeout", a.timeout, "seconds that ranks wait for each other (10)")
      ->check(number_in(0.5, 1e5))
      ->type_name("SECONDS");
  command
      .add_option("--checkpoint-every", a.checkpoints, "steps from one checkpoint to the next (5)")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("STEPS");
}

const CommandOf<ChaosArguments> chaos_command{
    {"chaos", 85,
     "train as a script says while processes die, disks fill up, messages are lost and bits flip; "
     "report each fault, and compare every loss with those of a training without faults",
     Command::scripted},
    [](CLI::App& command, ChaosArguments& a) {
      command.add_option("SCRIPT", a.script, "an experiment script (Lua) with one mw.train")
          ->required();
      add_settings(command, a);
      add_quiet(command, a);
      command.footer(
          "Words after -- are passed to the script: arg[1], arg[2], ...\n"
          "Example: meshwright chaos scripts/quickstart.lua --set steps=2000 --minutes 5");
      add_faults(command, a);
      command.add_option("--log", a.log, "a line of JSON for each fault goes into this file")
          ->type_name("FILE");
      command
          .add_option("--processes", a.processes.processes,
                      "share the ranks among so many processes on this machine")
          ->check(CLI::Range(1, 1 << 16))
          ->type_name("N");
      command
          .add_option("--communicator", a.processes.communicator,
                      "the plugin that connects processes, if it is not the launcher's own")
          ->type_name("NAME");
      command
          .add_option("--launcher", a.launcher,
                      "what starts the run's processes, on this machine: \"mpirun -n 8\"")
          ->type_name("COMMAND");
      add_common(command, a);
    },
    run_chaos};

}  // namespace
}  // namespace mw
