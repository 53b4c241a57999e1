// Runs a script up to its first experiment in a copy of this process that says nothing, and
// compares the experiment's ranks with the processes that were asked for.
#include "app/processes_check.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "app/app_host.h"
#include "common/process.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/pack.h"
#include "meshwright/engine/ranks.h"
#include "transport/launched.h"

namespace mw {
namespace {

constexpr double patience_for_script = 10;                // seconds, for what starts in a moment
constexpr std::size_t lua_memory = std::size_t{1} << 30;  // bytes

// In the copy: ends it. An error that has nothing to do with processes is for those to tell.
[[noreturn]] void look(const ScriptArguments& arguments, const std::string& train_as, int pipe) {
  const int nothing = ::open("/dev/null", O_RDWR);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, standard);
  try {
    Output silent(/*json=*/false, /*quiet=*/true);
    PluginRegistry plugins = registry_of(arguments);
    HostOptions options = arguments.host;
    options.instead = [&](const std::vector<Experiment>& experiments) {
      try {
        for (const Experiment& each : experiments)
          if (train_as != "compare" || each.plan->ranks() > 1)
            ranks_of_processes(each.plan->ranks(), arguments.processes.processes, each.plan->mix());
      } catch (const Error& error) {
        const std::string bytes = pack(error.problems());
        static_cast<void>(write_whole(pipe, bytes.data(), bytes.size()));
      }
      ::_exit(0);
    };
    AppHost host(silent, plugins, std::move(options));
    ScriptOptions of_script = script_options(arguments, train_as, silent);
    of_script.sandboxed = lua_memory;
    Script script(host, of_script);
    const ScriptText text = read_script(arguments.scripts().front());
    host.set_script(text);
    script.run(text);
  } catch (...) {
  }
  ::_exit(0);
}

// What the copy has written when it ended; empty where it takes too long.
std::string told_by(int pipe) {
  std::string bytes;
  const double until = seconds_now() + patience_for_script;
  while (seconds_now() < until) {
    pollfd ready{pipe, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(1e3 * (until - seconds_now())) + 1) < 0 &&
        errno != EINTR)
      break;
    if (ready.revents == 0) continue;
    char block[1 << 12];
    const ssize_t got = ::read(pipe, block, sizeof block);
    if (got == 0) return bytes;
    if (got > 0) bytes.append(block, static_cast<std::size_t>(got));
  }
  return "";
}

}  // namespace

void check_processes(const ScriptArguments& arguments, const std::string& train_as) {
  // A script from standard input can be read once.
  if (arguments.processes.processes < 2 || launched() || arguments.scripts().front() == "-") return;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const pid_t copy = fork_tied(SIGKILL);
  if (copy == 0) look(arguments, train_as, ends[1]);
  ::close(ends[1]);
  const std::string bytes = copy > 0 ? told_by(ends[0]) : "";
  ::close(ends[0]);
  if (copy > 0) ::kill(copy, SIGKILL);
  if (copy > 0) ::waitpid(copy, nullptr, 0);
  if (!bytes.empty()) throw Error(unpack<std::vector<Problem>>(bytes));
}

}  // namespace mw
