// The program's entry: reads the arguments and calls the command that they name.
// Exit codes: 0 ok, 1 run failed or verdict different, 2 usage or script error,
// 3 plan refused, 4 some cells failed, 5 environment, 130 interrupted.
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>

#include <unistd.h>
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>

#include "app/command.h"
#include "common/process.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/text.h"
#include "prove/proved.h"
#include "record/run_reader.h"
#include "script/read_experiment.h"

namespace mw {
namespace {

constexpr int exit_usage = 2;
// for the first process to print an error that all processes have
constexpr int seconds_for_first = 5;

// The error for a word that names no command, with the nearest command; empty: all words do.
std::optional<Error> misspelt(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string path;
  for (const std::string& word : words) {
    std::vector<std::string> names;
    for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
    }
    if (names.empty() || word.starts_with('-')) return std::nullopt;
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      std::erase_if(names, [&](const std::string& name) {  // hidden commands have no group
        return at->get_subcommand(name)->get_group().empty();
      });
      const std::string near = word == "help" ? fmt::format("meshwright {}--help lists them", path)
                                              : did_you_mean(word, names);
      return Error(Stage::script, "usage.command", "",
                   fmt::format("there is no command {}", quote(path + word)),
                   near.empty() ? "commands: " + join(names) : near);
    }
    at = at->get_subcommand(word);
    path += word + " ";
  }
  return std::nullopt;
}

// "--steps 5" is meant as --set steps=5, if no option of the command is nearer.
std::string hint_for_option(const std::string& given, std::vector<std::string> names) {
  const bool sets = std::find(names.begin(), names.end(), "--set") != names.end();
  std::vector<std::string> keys;
  for (const Option& option : experiment_options().list())
    if (sets) keys.push_back("--" + option.name);
  names.insert(names.end(), keys.begin(), keys.end());
  const std::string found = nearest(given.substr(0, given.find('=')), names);
  if (found.empty()) return "";
  if (std::find(keys.begin(), keys.end(), found) == keys.end())
    return fmt::format("did you mean {}?", quote(found));
  const std::size_t equals = given.find('=');
  return fmt::format("a key of the experiment is set by --set {}={}", found.substr(2),
                     equals == std::string::npos ? "…" : given.substr(equals + 1));
}

// The hint for a parse error: the nearest option, if the parser found an unknown one.
std::string hint_for(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;
  std::string path;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += at->get_name() + " ";
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : at->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    for (const std::string& given : app.remaining(/*recurse=*/true)) {
      if (!given.starts_with("--")) continue;
      std::string near = hint_for_option(given, names);
      if (!near.empty()) return near;
    }
  }
  return fmt::format("see meshwright {}--help", path);
}

// The text of a parse error. Unknown words are listed as they were typed, in that order.
std::string text_of(const CLI::App& app, const CLI::ParseError& error,
                    const std::vector<std::string>& words) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr) return error.what();
  std::vector<std::string> extra = app.remaining(/*recurse=*/true), typed;
  for (const std::string& word : words) {
    const auto found = std::find(extra.begin(), extra.end(), word);
    if (found == extra.end()) continue;
    extra.erase(found);
    typed.push_back(word);
  }
  typed.insert(typed.end(), extra.begin(), extra.end());
  return fmt::format("nothing here takes {}", join(typed, " "));
}

// Adds all commands to the parser, each below the group that its path names.
void add_commands(CLI::App& app) {
  for (Command* command : all_commands()) {
    const std::string path = command->about().path;
    const std::size_t space = path.find(' ');
    CLI::App* above = space == std::string::npos ? &app : app.get_subcommand(path.substr(0, space));
    command->add_options(*above->add_subcommand(
        path.substr(space == std::string::npos ? 0 : space + 1), command->about().about));
  }
}

// The command that was called, or as much of it as has been read; null: none.
Command* called(const CLI::App& app) {
  std::string path;
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    path += (path.empty() ? "" : " ") + at->get_name();
  }
  for (Command* command : all_commands())
    if (path == command->about().path) return command;
  return nullptr;
}

// Proves every plan before it is run or shown. MESHWRIGHT_UNPROVED is for tests of the checks that
// judge wrong plans as they run.
void prove_plans() {
  if (std::getenv("MESHWRIGHT_UNPROVED") == nullptr) {
    add_plan_check(check_proved);
  } else {
    std::cerr << "warning: MESHWRIGHT_UNPROVED is set: plans are not proved\n";
  }
}

bool wants_json(const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), "--json") != words.end();
}

// Takes what stands behind "--" out of the words of a command that runs a script.
std::vector<std::string> words_of_script(std::vector<std::string>& words) {
  const auto own = std::find(words.begin(), words.end(), "--");
  std::vector<std::string> taken;
  if (own == words.end() ||
      std::none_of(all_commands().begin(), all_commands().end(), [&](const Command* command) {
        return command->about().is(Command::scripted) && words.front() == command->about().path;
      }))
    return taken;
  taken.assign(own + 1, words.end());
  words.erase(own, words.end());
  return taken;
}

// Reads the words into the arguments of the command that they call. Returns an exit code if no
// command is to be run.
std::optional<int> parse(CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty()) {
    std::cerr << app.help();
    return exit_usage;
  }
  if (const auto error = misspelt(app, words)) {
    Output(wants_json(words)).error(*error);
    return exit_usage;
  }
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    Command* const command = called(app);
    if (is_silent_process(command == nullptr ? ProcessArguments{} : command->arguments().processes))
      return error.get_exit_code() == 0 ? 0 : exit_usage;
    if (error.get_exit_code() == 0) return app.exit(error);
    Output(wants_json(words))
        .error(Error(Stage::script, "usage.option", "", text_of(app, error, words),
                     hint_for(app, error)));
    return exit_usage;
  }
}

int run_main(int argc, char** argv) {
  prove_plans();
  provide_measured_times();
  CLI::App app{
      "Meshwright composes the parallelism forms of transformer training from a Lua script.",
      "meshwright"};
  app.require_subcommand(1);
  app.set_version_flag("--version", version_line());
  add_commands(app);

  const std::vector<std::string> all(argv + 1, argv + argc);
  std::vector<std::string> words = all;
  const std::vector<std::string> of_script = words_of_script(words);
  if (const auto code = parse(app, words)) return *code;

  Command& command = *called(app);
  Arguments& arguments = command.arguments();
  arguments.processes.words = all;
  arguments.words.insert(arguments.words.end(), of_script.begin(), of_script.end());
  if (const auto code = enter_sandbox(arguments)) return *code;
  std::optional<Output> output;
  const bool silent = is_silent_process(arguments.processes);
  const OnStopSay on_stop(silent ? "" : stop_words);
  try {
    output.emplace(arguments.json, arguments.quiet);
    if (silent) output->mute();
    keep_thread_limit();
    if (!command.about().is(Command::joins) &&
        left_to_first(command.about().path, arguments.processes))
      return 0;
    return command.run(*output);
  } catch (const Error& error) {
    if (!output) output.emplace(false);
    // A silent process waits before it prints: if the first process fails too, that prints the
    // error, and the launcher ends this one.
    const bool alone = silent && error.exit_code() == exit_code_of(Stage::environment);
    for (int second = 0; alone && second < seconds_for_first && !stop_requested(); ++second)
      ::sleep(1);
    if ((alone && !stop_requested()) || !silent) output->error(error);
    return stop_requested() ? exit_interrupted : error.exit_code();
  } catch (const std::exception& error) {
    if (!output) output.emplace(false);
    if (!silent) output->error(Error(problem_of(error)));
    return exit_code_of(Stage::run);
  }
}

const CommandOf<Arguments> version_command{{"version", 210, "print the version"},
                                           [](CLI::App&, Arguments&) {},
                                           [](const Arguments&, Output& output) {
                                             output.text(version_line());
                                             return 0;
                                           }};

}  // namespace
}  // namespace mw

template <class Function>
static Function* of_openmp(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

// The OpenMP library binds the first thread to a place while it is loaded, if OMP_PROC_BIND,
// OMP_PLACES or GOMP_CPU_AFFINITY say so. This process and those that it starts would have that
// place alone. OpenMP still knows how many processors there were before: those of all places, or
// all that the system allows. If neither has that number, the thread stays bound.
static void leave_place() {
  const auto processors = of_openmp<int()>("omp_get_num_procs");
  const auto places = of_openmp<int()>("omp_get_num_places");
  const auto size = of_openmp<int(int)>("omp_get_place_num_procs");
  const auto numbers = of_openmp<void(int, int*)>("omp_get_place_proc_ids");
  cpu_set_t bound;
  if (processors == nullptr || places == nullptr || size == nullptr || numbers == nullptr ||
      ::sched_getaffinity(0, sizeof bound, &bound) != 0 || processors() <= CPU_COUNT(&bound))
    return;
  cpu_set_t of_places = bound, all, now;
  for (int place = 0; place < places(); ++place) {
    std::vector<int> found(static_cast<std::size_t>(size(place)));
    numbers(place, found.data());
    for (const int processor : found) CPU_SET(static_cast<std::size_t>(processor), &of_places);
  }
  std::memset(&all, 0xff, sizeof all);
  for (const cpu_set_t* set : {&of_places, &all, &bound}) {
    ::sched_setaffinity(0, sizeof *set, set);
    if (::sched_getaffinity(0, sizeof now, &now) == 0 && CPU_COUNT(&now) == processors()) break;
  }
}

// OpenMP threads that spin between parallel regions take cores from other ranks and programs:
// beside one busy program, steps of 0.13 s took 3 s on two cores. Threads that never spin wake
// late: steps took 151 ms instead of 92 ms with nothing beside. With a thousand spins steps took
// 109 ms, and 8 % longer beside a program. The library reads these variables once, when it is
// loaded, so the program executes itself again, unless somebody has set them.
static void wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (argv[0] == nullptr || argv[1] == nullptr || argv[1][0] == '-') return;
  ::setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
  ::setenv("GOMP_SPINCOUNT", "1000", 1);
  ::execv("/proc/self/exe", argv);
}

// Whoever started this program may have closed its standard streams (`>&- 2>&-`). The next files
// that it opens would stand in their place, and get what it prints.
static void open_standard_streams() {
  int file = 0;
  do file = ::open("/dev/null", O_RDWR);
  while (file >= 0 && file <= STDERR_FILENO);
  if (file >= 0) ::close(file);
}

int main(int argc, char** argv) {
  open_standard_streams();
  leave_place();
  wait_passively(argv);
  // The program that started this one may ignore SIGCHLD. The system would then keep no exit codes
  // of the processes that this program starts, and all of them would seem to have ended well.
  ::signal(SIGCHLD, SIG_DFL);
  // The program that started this one may also have blocked SIGINT and SIGTERM, which end a run
  // after its current step.
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // A write beyond `ulimit -f` fails with an error that a command can print. Not SIG_IGN, which the
  // programs that a script starts would inherit.
  ::signal(SIGXFSZ, [](int) {});
  mw::exit_without_unloading();
  mw::keep_freed_memory();
  return mw::with_stdout_written(mw::run_main(argc, argv));
}
