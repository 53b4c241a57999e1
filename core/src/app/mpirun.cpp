// Runs mpirun out of reach of the terminal's signals, and sends those that come to the processes
// that it has started.
#include "app/mpirun.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "app/commands.h"
#include "meshwright/error.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

// Seconds that mpirun lets pass before it kills what is left once a process has died or failed; it
// takes them even if nothing is. Enough for the first process to close its run file.
constexpr const char* patience = "3";

std::string this_program() {
  return fs::read_symlink("/proc/self/exe").string();
}

std::vector<std::string> command_of(int processes, const std::vector<std::string>& words) {
  std::vector<std::string> all = {
      "mpirun",          "-n",    std::to_string(processes),   "--quiet", "--bind-to", "none",
      "--oversubscribe", "--mca", "odls_base_sigkill_timeout", patience};
  if (::geteuid() == 0) all.emplace_back("--allow-run-as-root");
  all.push_back(this_program());
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

sigset_t set_of(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

// Those of mpirun's children that run this program; its threads may each have some.
std::vector<pid_t> copies_of(pid_t mpirun) {
  std::vector<pid_t> copies;
  const std::string own = this_program();
  std::error_code error;
  const fs::path tasks = fmt::format("/proc/{}/task", mpirun);
  for (fs::directory_iterator task(tasks, error), end; !error && task != end;
       task.increment(error)) {
    std::ifstream children(task->path() / "children");
    for (pid_t child = 0; children >> child;) {
      std::error_code gone;
      if (fs::read_symlink(fmt::format("/proc/{}/exe", child), gone) == own)
        copies.push_back(child);
    }
  }
  return copies;
}

// errno of a program that could not be started comes through the pipe.
pid_t start(std::vector<std::string> command, const sigset_t& before) {
  std::vector<char*> raw;
  for (std::string& word : command) raw.push_back(word.data());
  raw.push_back(nullptr);
  int failed[2] = {-1, -1};
  int reason = ::pipe2(failed, O_CLOEXEC) == 0 ? 0 : errno;
  const pid_t parent = ::getpid();
  const pid_t process = reason == 0 ? ::fork() : -1;
  if (process == 0) {
    ::setpgid(0, 0);  // the terminal's Ctrl-C is for the copies
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    ::execvp(raw.front(), raw.data());
    const int why = errno;
    [[maybe_unused]] const auto written = ::write(failed[1], &why, sizeof why);
    ::_exit(127);
  }
  if (process < 0 && reason == 0) reason = errno;
  if (failed[1] >= 0) ::close(failed[1]);
  int why = 0;
  if (process > 0 && ::read(failed[0], &why, sizeof why) == static_cast<ssize_t>(sizeof why)) {
    ::waitpid(process, nullptr, 0);
    reason = why;
  }
  if (failed[0] >= 0) ::close(failed[0]);
  if (reason == 0) return process;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  throw Error(Stage::environment, "launch.mpirun", "",
              fmt::format("--processes: mpirun cannot be started: {}", std::strerror(reason)),
              "install OpenMPI (openmpi-bin), or start the processes by a launcher of your own");
}

}  // namespace

int run_by_mpirun(int processes, const std::vector<std::string>& words) {
  sigset_t awaited = set_of({SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}), before;
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  // Under nohup; blocked it would come all the same, and mpirun has its children heed it.
  if (hangup.sa_handler == SIG_IGN) sigdelset(&awaited, SIGHUP);
  sigprocmask(SIG_BLOCK, &awaited, &before);
  ::signal(SIGCHLD, SIG_DFL);  // where whoever started this ignores it, no exit code would be left
  const pid_t mpirun = start(command_of(processes, words), before);
  int pending = 0, status = 0;
  bool all_there = false;  // or have been: whoever is not there any more has ended
  pid_t ended = 0;
  while ((ended = ::waitpid(mpirun, &status, WNOHANG)) == 0) {
    const timespec a_while{all_there ? 1 : 0, all_there ? 0 : 50'000'000};
    const int signal = sigtimedwait(&awaited, nullptr, &a_while);
    if (signal > 0 && signal != SIGCHLD) pending = signal;
    if (all_there && pending == 0) continue;
    const std::vector<pid_t> copies = copies_of(mpirun);
    all_there = all_there || static_cast<int>(copies.size()) == processes;
    if (pending == 0 || (!all_there && pending != SIGINT)) continue;
    for (const pid_t copy : copies) ::kill(copy, pending);
    if (copies.empty()) ::kill(mpirun, SIGTERM);  // which has started none yet
    pending = 0;
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (ended < 0 || WIFSIGNALED(status)) return exit_code_of(Stage::run);
  const int code = WEXITSTATUS(status);
  constexpr int from_signals = 128;
  return code > from_signals && code != exit_interrupted ? exit_code_of(Stage::run) : code;
}

}  // namespace mw
