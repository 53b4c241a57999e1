// Starts processes by fork and exec, asks /proc about other processes, and tells the C library how
// this process keeps its memory and ends.
#include "common/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "common/files.h"
#include "meshwright/engine/files.h"
#include "meshwright/error.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

// This process' environment variables, with `others` in the place of those of the same names.
std::vector<std::string> environment_with(const std::vector<std::string>& others) {
  std::vector<std::string> all = others;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string one = *variable;
    const std::string name = one.substr(0, one.find('=') + 1);
    if (std::none_of(others.begin(), others.end(),
                     [&](const std::string& other) { return other.starts_with(name); }))
      all.push_back(one);
  }
  return all;
}

// The array that exec takes; `words` must outlive it.
std::vector<char*> raw_words(std::vector<std::string>& words) {
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  return raw;
}

int opened_output(const std::string& path) {
  if (path.empty()) return -1;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0666);
  if (file < 0) throw not_written(path, errno);
  return file;
}

// Runs between fork and exec: it calls nothing that allocates or locks.
void become(const ProcessStart& start, int output) {
  if (start.own_group) ::setpgid(0, 0);
  if (output >= 0) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
  }
  if (start.lock >= 0) ::fcntl(start.lock, F_SETFD, 0);
  if (start.memory > 0) {
    const auto bytes = static_cast<rlim_t>(start.memory);
    const rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_DATA, &limit);
  }
  if (start.fresh_signals) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_DFL);
  }
  if (start.signals_blocked) sigprocmask(SIG_SETMASK, &*start.signals_blocked, nullptr);
}

}  // namespace

pid_t fork_tied(int signal) {
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process == 0) {
    ::prctl(PR_SET_PDEATHSIG, signal);
    if (::getppid() != parent) ::_exit(127);
  }
  return process;
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-./=,:%+@") == std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

pid_t start_process(const ProcessStart& start) {
  std::vector<std::string> words = start.command, variables = environment_with(start.variables);
  const std::vector<char*> arguments = raw_words(words), environment = raw_words(variables);
  const char* const program = start.program.empty() ? words.front().c_str() : start.program.c_str();
  const int output = opened_output(start.output);
  // The errno of a failed exec comes back through a pipe, which closes by itself where exec
  // succeeds.
  int failed[2] = {-1, -1};
  int why = ::pipe2(failed, O_CLOEXEC) == 0 ? 0 : errno;
  const pid_t process = why == 0 ? fork_tied(start.tied_by) : -1;
  if (process == 0) {
    become(start, output);
    ::execvpe(program, arguments.data(), environment.data());
    const int reason = errno;
    [[maybe_unused]] const auto written = ::write(failed[1], &reason, sizeof reason);
    ::_exit(127);
  }
  if (process < 0 && why == 0) why = errno;
  for (const int file : {failed[1], output}) {
    if (file >= 0) ::close(file);
  }
  int reason = 0;
  ssize_t got = 0;
  while (process > 0 && (got = ::read(failed[0], &reason, sizeof reason)) < 0 && errno == EINTR) {
  }
  if (got == sizeof reason) {
    ::waitpid(process, nullptr, 0);
    why = reason;
  }
  if (failed[0] >= 0) ::close(failed[0]);
  if (why != 0) throw std::system_error(why, std::generic_category());
  return process;
}

bool child_ended(pid_t process, int& status) {
  const pid_t ended = ::waitpid(process, &status, WNOHANG);
  if (ended == process) return true;
  if (ended < 0 && errno == ECHILD) {  // somebody else has waited for it
    status = 0;
    return true;
  }
  return false;
}

std::string signal_name(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("SIG{}", name);
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> found;
  std::error_code error;
  const fs::path tasks = fmt::format("/proc/{}/task", process);
  for (fs::directory_iterator task(tasks, error), end; !error && task != end;
       task.increment(error)) {
    std::ifstream children(task->path() / "children");
    for (pid_t child = 0; children >> child;) found.push_back(child);
  }
  return found;
}

bool runs_this_program(pid_t process) {
  std::error_code gone;
  return fs::read_symlink(fmt::format("/proc/{}/exe", process), gone) == program_path();
}

std::string variable_of(pid_t process, const std::string& name) {
  std::ifstream file(fmt::format("/proc/{}/environ", process), std::ios::binary);
  for (std::string line; std::getline(file, line, '\0');) {
    if (line.starts_with(name + "=")) return line.substr(name.size() + 1);
  }
  return "";
}

std::optional<unsigned long long> process_start(int process) {
  const auto stat = whole_file(fmt::format("/proc/{}/stat", process));
  if (!stat) return std::nullopt;
  // The program's name, field 2, may hold spaces. Field 3 is the state, 22 the start.
  const std::size_t name = stat->rfind(')');
  if (name == std::string::npos) return std::nullopt;
  std::istringstream fields(stat->substr(name + 1));
  std::string field;
  for (int i = 3; i < 22; ++i) {
    if (!(fields >> field) || (i == 3 && field == "Z")) return std::nullopt;
  }
  unsigned long long ticks = 0;
  if (!(fields >> ticks)) return std::nullopt;
  return ticks;
}

void exit_without_unloading() {
  // The sanitizers look at what is left after the usual end of a process.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  ::on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
#endif
}

void keep_freed_memory() {
#ifdef __GLIBC__
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables != nullptr && std::strstr(tunables, "glibc.malloc.mmap_threshold") != nullptr) {
    return;  // the user knows better
  }
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace mw
