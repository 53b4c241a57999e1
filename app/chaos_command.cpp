// `meshwright chaos`: a script's training, disturbed by faults of all kinds again and again, and
// what it makes of them.
#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "app/progress.h"
#include "app/script_command.h"
#include "chaos/chaos.h"
#include "common/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

struct ChaosArguments : Arguments {
  chaos::Wishes wishes;
  std::string log;
};

void check_kinds(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const chaos::FaultKind& kind : chaos::fault_kinds()) known.emplace_back(kind.name);
  for (const std::string& name : names) {
    if (chaos::kind_of(name) != nullptr) continue;
    const std::string near = did_you_mean(name, known);
    throw Error(Stage::script, "usage.value", "",
                fmt::format("--kinds {}: there is no fault of that name", name),
                near.empty() ? "there are " + join(known) : near);
  }
}

std::ofstream opened_log(const std::string& path) {
  std::ofstream log;
  if (path.empty()) return log;
  log.open(path, std::ios::trunc);
  if (!log) {
    throw Error(
        Stage::options, "file.write", "",
        fmt::format("--log: {}: cannot write it: {}", path, std::generic_category().message(errno)),
        "name a file in a folder that you may write to");
  }
  return log;
}

std::string text_of_record(const chaos::Record& record) {
  if (!record.met) return fmt::format("fault {}: {} found no place", record.number, record.kind);
  std::string text = fmt::format("fault {}: {} at step {}, {}", record.number, record.kind,
                                 record.step, record.where);
  if (!record.said.empty()) text += fmt::format("\n    said: {}", record.said);
  text += record.from >= 0 ? fmt::format("\n    goes on from step {}", record.from)
                           : std::string("\n    goes on");
  text += fmt::format(", {:.1f} s", record.seconds);
  if (!record.wrong.empty()) text += "\n    wrong: " + record.wrong;
  return text;
}

// Shows how far the training without faults is, as other trainings show it.
class FirstTraining {
 public:
  void step(std::int64_t done, std::int64_t steps, double loss) {
    if (done <= done_) return;
    const double now = seconds_now(), seconds = (now - at_) / static_cast<double>(done - done_);
    if (!shown_) shown_.emplace(stderr, steps, style_for(stderr));
    shown_->step({.step = done - 1, .loss = loss, .seconds = seconds}, now);
    done_ = done;
    at_ = now;
  }
  void end() { shown_.reset(); }

 private:
  std::optional<Progress> shown_;
  std::int64_t done_ = 0;
  double at_ = seconds_now();
};

int run_chaos(const ChaosArguments& given, Output& output) {
  chaos::Wishes wishes = given.wishes;
  check_kinds(wishes.kinds);
  check_starts_again("chaos", wishes.start.script, wishes.start.launcher, given.processes);
  if (wishes.minutes == 0 && wishes.faults == 0)
    wishes.faults = static_cast<std::int64_t>(wishes.kinds.empty() ? chaos::fault_kinds().size()
                                                                   : wishes.kinds.size());
  wishes.start.settings = given.settings;
  wishes.start.plugin_path = given.plugin_path;
  wishes.start.words = given.words;
  wishes.start.processes = given.processes.processes;
  wishes.start.communicator = given.processes.communicator;
  std::ofstream log = opened_log(given.log);
  stop_on_signals();
  ::setenv("MESHWRIGHT_DETERMINISTIC", "1", /*overwrite=*/1);  // losses are compared to the bit
  WorkFolder folder("mw-chaos-");  // its name stands in the words of all processes of the run
  FirstTraining first;
  const chaos::Listener listener{.say =
                                     [&](const std::string& text) {
                                       first.end();
                                       output.note(text);
                                     },
                                 .progress =
                                     [&](std::int64_t done, std::int64_t steps, double loss) {
                                       if (!output.quiet()) first.step(done, steps, loss);
                                     },
                                 .heard =
                                     [&](const chaos::Record& record) {
                                       if (log.is_open())
                                         log << record.to_json().dump() << std::endl;
                                       output.note(text_of_record(record));
                                       output.result(record.to_json());
                                     }};
  const chaos::Outcome outcome = chaos::disturb(wishes, folder.path(), listener);
  first.end();
  if (log.is_open() && !log)
    output.warn(fmt::format("{} could not be written to its end", given.log));
  if (!outcome.good()) {
    folder.keep();
    output.note(fmt::format("{} is kept: the run's files are in it", folder.path().string()));
  }
  const bool began = outcome.steps > 0;  // not ended during the training without faults
  if (!output.json() && began) output.text(outcome.text());
  output.result(outcome.to_json());
  if (outcome.interrupted) return exit_interrupted;
  return outcome.good() ? 0 : exit_code_of(Stage::run);
}

void add_faults(CLI::App& command, chaos::Wishes& wishes) {
  command.add_option("--minutes", wishes.minutes, "no further fault after so many minutes")
      ->check(number_in(0.01, 1e6))
      ->type_name("M");
  command
      .add_option("--faults", wishes.faults,
                  "the largest number of faults; without it, one of each kind")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N");
  command
      .add_option(
          "--every", wishes.every,
          "mean seconds between two faults (5); each time is drawn from 0.5 to 1.5 times that")
      ->check(number_in(0.0, 1e6))
      ->type_name("SECONDS");
  command.add_option("--seed", wishes.seed, "draws kinds, ranks and moments (1)")->type_name("S");
  command
      .add_option(
          "--kinds", wishes.kinds,
          "kinds of faults, with commas between; by default all that can happen to the training")
      ->delimiter(',')
      ->type_name("A,B");
  command
      .add_option("--timeout", wishes.start.timeout, "seconds that ranks wait for each other (10)")
      ->check(number_in(0.5, 1e5))
      ->type_name("SECONDS");
  command
      .add_option("--checkpoint-every", wishes.start.checkpoints,
                  "steps from one checkpoint to the next (5)")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("STEPS");
}

const CommandOf<ChaosArguments> chaos_command{
    {"chaos", 85,
     "train as a script says while processes die, disks fill up, messages are lost and bits flip; "
     "report each fault, and compare every loss with those of a training without faults",
     Command::scripted},
    [](CLI::App& command, ChaosArguments& a) {
      command
          .add_option("SCRIPT", a.wishes.start.script,
                      "an experiment script (Lua) with one mw.train")
          ->required();
      add_settings(command, a);
      add_quiet(command, a);
      command.footer(
          "Words after -- are passed to the script: arg[1], arg[2], ...\n"
          "Example: meshwright chaos scripts/quickstart.lua --set steps=2000 --minutes 5");
      add_faults(command, a.wishes);
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
          .add_option("--launcher", a.wishes.start.launcher,
                      "what starts the run's processes, on this machine: \"mpirun -n 8\"")
          ->type_name("COMMAND");
      add_common(command, a);
    },
    run_chaos};

}  // namespace
}  // namespace mw
