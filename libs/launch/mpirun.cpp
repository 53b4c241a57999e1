// Runs mpirun out of reach of the terminal's signals, and passes the signals that this process gets
// on to the processes that mpirun has started.
#include "launch/processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <system_error>

#include "common/file_lock.h"
#include "common/process.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// Seconds that mpirun waits after a process has died or failed before it kills the others, even if
// none is left. Enough for the first process to close its run file.
constexpr const char* kill_patience = "3";

std::vector<std::string> command_of(int processes, const std::string& folder,
                                    const std::vector<std::string>& words) {
  std::vector<std::string> all = {
      "mpirun",          "-n",    std::to_string(processes),   "--quiet",    "--bind-to", "none",
      "--oversubscribe", "--mca", "odls_base_sigkill_timeout", kill_patience};
  // On one machine nothing goes over the network: messages go through shared memory, and mpirun
  // announces itself at the loopback address.
  all.insert(all.end(), {"--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--mca",
                         "oob_tcp_if_include", "lo"});
  // mpirun must not ask a batch system for other machines: they could not reach that address.
  all.insert(all.end(), {"--mca", "ras", "^slurm,tm,lsf,gridengine", "--mca", "plm", "isolated"});
  if (!folder.empty()) all.insert(all.end(), {"--mca", "orte_tmpdir_base", folder});
  if (::geteuid() == 0) all.emplace_back("--allow-run-as-root");
  all.push_back(program_path().string());
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

sigset_t set_of(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

// The processes that mpirun has started, and the signals that each has been sent. A copy that has
// just begun and has no handler yet is ended by a signal, and with it the run, which has not begun
// either.
class Copies {
 public:
  Copies(pid_t mpirun, int processes) : mpirun_(mpirun), processes_(processes) {}
  // Whether all copies have been seen. Some may have ended since.
  bool all_seen() const { return static_cast<int>(had_.size()) >= processes_; }
  bool any_seen() const { return !had_.empty(); }
  // Has look() send a signal to every copy once, also to copies that begin later.
  void send(int signal) { signals_.push_back(signal); }
  bool any_left() const { return left_; }  // whether the last look() saw a copy
  void look() {
    left_ = false;
    for (const pid_t copy : children_of(mpirun_)) {
      if (!runs_this_program(copy)) continue;
      left_ = true;
      std::size_t& had = had_[copy];
      while (had < signals_.size()) ::kill(copy, signals_[had++]);
    }
  }

 private:
  const pid_t mpirun_;
  const int processes_;
  std::vector<int> signals_;
  std::map<pid_t, std::size_t> had_;  // by copy: number of signals_ that it has been sent
  bool left_ = true;
};

constexpr const char* leavings_name = "meshwright-mpirun-";
constexpr const char* leavings_lock = ".in-use";

// Removes the folders of this user's launchers that were killed: those whose lock nobody holds. A
// folder younger than 10 s is left alone, as its launcher may not hold the lock yet.
void sweep_leavings(const fs::path& temporary) {
  constexpr std::time_t moment = 10;
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(temporary, error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().starts_with(leavings_name)) found.push_back(at->path());
  for (const fs::path& path : found) {
    struct stat folder {};
    if (::lstat(path.c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode) ||
        folder.st_uid != ::geteuid() || folder.st_mtime + moment > std::time(nullptr))
      continue;
    try {
      if (const FileLock lock(path / leavings_lock); lock.held()) fs::remove_all(path, error);
    } catch (const std::system_error&) {  // another launcher removes it at the same time
    }
  }
}

// A folder for the files that mpirun leaves behind if it is killed, some MiB. This process and
// mpirun hold its lock: while one of the two lives, sweep_leavings() does not remove it.
class Leavings {
 public:
  Leavings() {
    std::error_code error;
    const fs::path temporary = fs::temp_directory_path(error);
    if (error) return;
    sweep_leavings(temporary);
    std::string name = (temporary / (std::string(leavings_name) + "XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) return;
    try {
      lock_ = FileLock(fs::path(name) / leavings_lock);
      folder_ = name;
    } catch (const std::system_error&) {  // the disk is full
      fs::remove_all(name, error);
    }
  }
  ~Leavings() {
    std::error_code error;
    if (!folder_.empty()) fs::remove_all(folder_, error);
  }
  Leavings(const Leavings&) = delete;
  Leavings& operator=(const Leavings&) = delete;
  const std::string& folder() const { return folder_; }  // empty: mpirun chooses a folder
  int lock() const { return lock_.descriptor(); }        // descriptor that mpirun inherits

 private:
  std::string folder_;
  FileLock lock_;
};

bool stands_in_preload(const fs::path& library) {
  return library.string().find_first_of(" :") == std::string::npos;
}

// The value of LD_PRELOAD for mpirun: the library libs/launch/loopback, before the user's own
// value. Spaces and colons separate names there, so where the library's path has one, a link in
// `folder` stands for it. Throws Error (environment) without the library: mpirun would listen on
// all addresses of the machine.
std::string preloaded(const std::string& folder) {
  fs::path library = program_path().parent_path().parent_path() / "lib/libmeshwright_loopback.so";
  std::error_code error;
  const fs::path link = fs::path(folder) / library.filename();
  bool found = fs::exists(library, error);
  if (found && !stands_in_preload(library)) {
    found = !folder.empty() && stands_in_preload(link);
    if (found) fs::create_symlink(library, link, error);
    found = found && !error;
    library = found ? link : library;
  }
  if (!found)
    throw Error(Stage::environment, "launch.mpirun", "",
                fmt::format("--processes: mpirun cannot load {}, without which it listens on all "
                            "addresses of this machine",
                            library.string()),
                "./meshwright build makes it; TMPDIR names a folder without spaces");
  const char* const before = std::getenv("LD_PRELOAD");
  return library.string() + (before == nullptr || *before == '\0' ? "" : std::string(":") + before);
}

// Kills mpirun half a second after the last copy has ended. If a copy failed or was ended by a
// signal, mpirun would wait for the others though none is left. If all ended well, it ends by
// itself within that time.
class Farewell {
 public:
  explicit Farewell(pid_t mpirun) : mpirun_(mpirun) {}
  // Called about each 50 ms while no copy is left.
  void hurry() {
    if (++called_ == 10) ::kill(mpirun_, SIGKILL);
  }

 private:
  const pid_t mpirun_;
  int called_ = 0;
};

// A path by which other processes open the stdout of this one; empty if they cannot. A file is
// appended to from now on, as each process has an offset of its own in it.
std::string path_of_stdout() {
  struct stat info {};
  const int flags = ::fcntl(STDOUT_FILENO, F_GETFL);
  if (flags < 0 || ::fstat(STDOUT_FILENO, &info) != 0) return "";
  if (S_ISREG(info.st_mode) && ::fcntl(STDOUT_FILENO, F_SETFL, flags | O_APPEND) != 0) return "";
  return fmt::format("/proc/{}/fd/{}", ::getpid(), STDOUT_FILENO);
}

// The hint for a user whose mpirun was ended by a signal.
std::string hint_for_signal(int number) {
  constexpr std::size_t least = 58;  // letters in a host's name; found with OpenMPI 4.1.4
  if (number == SIGKILL)
    return "another program has killed it, or the kernel did for lack of memory: dmesg says so "
           "then";
  std::string hint =
      "what it said stands above; mpirun -n 2 true shows whether it works on this machine by "
      "itself";
  if (const std::string host = host_name(); host.size() >= least)
    hint += fmt::format(
        "; OpenMPI 4.1 crashes where the host's name has {} letters or more, and "
        "this one has {}",
        least, host.size());
  return hint;
}

// The error for an mpirun that failed before its processes had met. OpenMPI ends all processes
// where it cannot connect them, and mpirun --quiet does not say so.
Error unsaid(int code) {
  std::error_code error;
  const fs::space_info space = fs::space("/dev/shm", error);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  return {Stage::environment, "launch.mpirun", "",
          fmt::format("--processes: mpirun ended with exit code {} before its processes had met; "
                      "what it said of the reason stands above, if it said any",
                      code),
          fmt::format("mpirun -n 2 hostname shows whether mpirun works; OpenMPI needs some MiB of "
                      "/dev/shm, which {}, and some file descriptors for each process, of which "
                      "ulimit -n allows {}",
                      error ? "is not there"
                            : "has " + format_bytes(static_cast<double>(space.available)) + " left",
                      files.rlim_cur)};
}

pid_t start_mpirun(ProcessStart start) {
  start.own_group = true;  // the terminal's Ctrl-C is for the copies
  try {
    return start_process(start);
  } catch (const std::system_error& error) {
    sigprocmask(SIG_SETMASK, &*start.signals_blocked, nullptr);
    throw Error(Stage::environment, "launch.mpirun", "",
                fmt::format("--processes: mpirun cannot be started: {}", error.code().message()),
                "install OpenMPI (openmpi-bin), or start the processes by a launcher of your own");
  }
}

}  // namespace

int run_by_mpirun(int processes, const std::vector<std::string>& words) {
  sigset_t awaited = set_of({SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}), before;
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  // Under nohup SIGHUP is ignored. Blocked, it would reach sigtimedwait() all the same, and
  // mpirun's children heed it.
  if (hangup.sa_handler == SIG_IGN) sigdelset(&awaited, SIGHUP);
  sigprocmask(SIG_BLOCK, &awaited, &before);
  ::signal(SIGCHLD, SIG_DFL);  // if a parent left it ignored, waitpid() would get no exit code
  const Leavings leavings;
  ProcessStart start;
  start.command = command_of(processes, leavings.folder(), words);
  start.signals_blocked = before;
  start.lock = leavings.lock();
  start.variables = {fmt::format("{}={}", token_variable, new_token())};
  if (const std::string lines = path_of_stdout(); !lines.empty())
    start.variables.push_back(fmt::format("{}={}", lines_variable, lines));
  start.variables.push_back("LD_PRELOAD=" + preloaded(leavings.folder()));
  const fs::path joined = fs::path(leavings.folder()) / "joined";
  if (!leavings.folder().empty())
    start.variables.push_back(fmt::format("{}={}", joined_variable, joined.string()));
  const pid_t mpirun = start_mpirun(start);
  Copies copies(mpirun, processes);
  Farewell farewell(mpirun);
  bool stopped = false, ended_early = false;  // a signal asked to end; it came before any copy
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(mpirun, &status, WNOHANG)) == 0) {
    const bool idle = copies.all_seen() && !stopped;
    const timespec a_while{idle ? 1 : 0, idle ? 0 : 50'000'000};
    const int signal = sigtimedwait(&awaited, nullptr, &a_while);
    const bool asks = signal > 0 && signal != SIGCHLD;
    stopped = stopped || asks;
    if (asks) copies.send(signal);
    if (!idle || asks) copies.look();
    if (stopped && copies.all_seen() && !copies.any_left()) farewell.hurry();
    if (!stopped || copies.any_seen() || ended_early) continue;
    ended_early = true;
    ::kill(mpirun, SIGTERM);  // no copy has started yet
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  const int by_signal = stopped ? exit_interrupted : exit_code_of(Stage::run);
  if (ended > 0 && WIFSIGNALED(status) && !stopped) {
    throw Error(Stage::run, "launch.mpirun", "",
                fmt::format("--processes: mpirun was ended by {}, and its processes with it",
                            signal_name(WTERMSIG(status))),
                hint_for_signal(WTERMSIG(status)));
  }
  if (ended < 0 || WIFSIGNALED(status)) return by_signal;
  const int code = WEXITSTATUS(status);
  constexpr int from_signals = 128;
  if (code > from_signals || (code != 0 && ended_early)) return by_signal;
  std::error_code error;
  if (code != 0 && !leavings.folder().empty() && !fs::exists(joined, error)) throw unsaid(code);
  return code;
}

}  // namespace mw
