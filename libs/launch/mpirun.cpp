// Runs mpirun out of reach of the terminal's signals, and sends those that come to the processes
// that it has started.
#include "launch/processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <sstream>
#include <system_error>
#include <utility>

#include "common/process.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/threads.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// Seconds that mpirun lets pass before it kills what is left once a process has died or failed; it
// takes them even if nothing is. Enough for the first process to close its run file.
constexpr const char* kill_patience = "3";

std::vector<std::string> command_of(int processes, const std::string& folder,
                                    const std::vector<std::string>& words) {
  std::vector<std::string> all = {
      "mpirun",          "-n",    std::to_string(processes),   "--quiet",    "--bind-to", "none",
      "--oversubscribe", "--mca", "odls_base_sigkill_timeout", kill_patience};
  // On one machine nothing goes over the network: messages go through shared memory, and the
  // address at which mpirun says that it is to be found is the loopback one.
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

// The copies as they come and go, and the signals that each has had. One that has just begun and
// does not know what to do with a signal yet is ended by it, and with it the run, which has not
// begun either.
class Copies {
 public:
  Copies(pid_t mpirun, int processes) : mpirun_(mpirun), processes_(processes) {}
  // Or have been: whoever is not there any more has ended.
  bool all_seen() const { return static_cast<int>(had_.size()) >= processes_; }
  bool any_seen() const { return !had_.empty(); }
  // To every copy once, by look(): to those that are there, and to others when they are.
  void send(int signal) { signals_.push_back(signal); }
  bool any_left() const { return left_; }  // when they were looked at last
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
  std::map<pid_t, std::size_t> had_;  // how many of these
  bool left_ = true;
};

constexpr const char* leavings_name = "meshwright-mpirun-";
constexpr const char* leavings_lock = ".in-use";

bool older_than(const struct stat& info, std::time_t seconds) {
  return info.st_mtime + seconds < std::time(nullptr);
}

// Removes the folders of this user's launchers that were killed: those whose lock nobody holds. A
// folder younger than 10 s is left alone, as its launcher may not hold the lock yet. A folder
// without a lock is removed when it is older than a day.
void sweep_leavings(const fs::path& temporary) {
  constexpr std::time_t moment = 10, day = 24 * 60 * 60;
  std::error_code error;
  std::vector<fs::path> left;
  for (fs::directory_iterator at(temporary, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().string().starts_with(leavings_name)) continue;
    struct stat folder {};
    if (::lstat(at->path().c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode) ||
        folder.st_uid != ::geteuid())
      continue;
    const int lock = ::open((at->path() / leavings_lock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    const bool unlocked = lock < 0 && errno == ENOENT && older_than(folder, day);
    struct stat info {};
    const bool unused = lock >= 0 && ::fstat(lock, &info) == 0 && older_than(info, moment) &&
                        ::flock(lock, LOCK_EX | LOCK_NB) == 0;
    if (unused || unlocked) left.push_back(at->path());
    if (lock >= 0) ::close(lock);
  }
  for (const fs::path& each : left) fs::remove_all(each, error);
}

// A folder for what mpirun leaves if it is killed, some MiB. This process and mpirun hold its lock:
// while one of the two lives, nobody sweeps it.
class Leavings {
 public:
  Leavings() {
    std::error_code error;
    const fs::path temporary = fs::temp_directory_path(error);
    if (error) return;
    sweep_leavings(temporary);
    std::string name = (temporary / (std::string(leavings_name) + "XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) return;
    folder_ = name;
    // Not closed on exec: mpirun inherits it.
    lock_ =
        ::open((fs::path(folder_) / leavings_lock).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (lock_ >= 0) ::flock(lock_, LOCK_EX | LOCK_NB);
  }
  ~Leavings() {
    std::error_code error;
    if (!folder_.empty()) fs::remove_all(folder_, error);
    if (lock_ >= 0) ::close(lock_);
  }
  Leavings(const Leavings&) = delete;
  Leavings& operator=(const Leavings&) = delete;
  const std::string& folder() const { return folder_; }  // empty: mpirun chooses one

 private:
  std::string folder_;
  int lock_ = -1;
};

bool stands_in_preload(const fs::path& library) {
  return library.string().find_first_of(" :") == std::string::npos;
}

// LD_PRELOAD for mpirun: libs/launch/loopback, before what the user has there. Spaces and colons
// separate the names in it: where the library's path has one, a link in `folder` stands for the
// library. Throws where there is none: mpirun would listen on all addresses of the machine.
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

// After a copy that ended in failure or by a signal mpirun waits for the others, though none is
// left. It has half a second to see by itself that all ended well.
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

// A path by which other processes open the stdout of this one; empty if they cannot. Each process
// has an offset of its own in a file. All of them append from now on, so that none writes over the
// lines of another.
std::string path_of_stdout() {
  struct stat info {};
  const int flags = ::fcntl(STDOUT_FILENO, F_GETFL);
  if (flags < 0 || ::fstat(STDOUT_FILENO, &info) != 0) return "";
  if (S_ISREG(info.st_mode) && ::fcntl(STDOUT_FILENO, F_SETFL, flags | O_APPEND) != 0) return "";
  return fmt::format("/proc/{}/fd/{}", ::getpid(), STDOUT_FILENO);
}

// Passes on what mpirun says on stderr, and keeps its end. When mpirun crashes, only that says why.
class Words {
 public:
  Words() {
    if (::pipe2(ends_, O_CLOEXEC) != 0) ends_[0] = ends_[1] = -1;
  }
  ~Words() {
    end();
    if (ends_[0] >= 0) ::close(ends_[0]);
  }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  int for_mpirun() const { return ends_[1]; }
  void begin() {  // mpirun has started
    if (ends_[0] >= 0) thread_ = start_thread([this] { pass_on(); });
  }
  // When mpirun has ended: its last lines.
  std::string last() {
    end();
    std::vector<std::string> lines;
    std::istringstream text(kept_);
    for (std::string line; std::getline(text, line);)
      if (!line.empty()) lines.push_back(line);
    const std::size_t surplus = lines.size() - std::min<std::size_t>(lines.size(), 3);
    lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(surplus));
    return join(lines, " / ");
  }

 private:
  void end() {
    if (ends_[1] >= 0) ::close(std::exchange(ends_[1], -1));
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // To its end: when mpirun is gone, what is in the pipe, though another process may hold it too.
  void pass_on() {
    constexpr std::size_t most = 1000;
    constexpr int between_looks = 100;  // milliseconds
    while (true) {
      const bool last_look = over_;
      pollfd ready{ends_[0], POLLIN, 0};
      if (::poll(&ready, 1, last_look ? 0 : between_looks) <= 0) {
        if (last_look) return;
        continue;
      }
      char block[1 << 12];
      const ssize_t got = ::read(ends_[0], block, sizeof block);
      if (got <= 0) return;
      static_cast<void>(write_whole(STDERR_FILENO, block, static_cast<std::size_t>(got)));
      kept_.append(block, static_cast<std::size_t>(got));
      if (kept_.size() > 2 * most) kept_.erase(0, kept_.size() - most);
    }
  }

  int ends_[2] = {-1, -1};
  std::atomic<bool> over_ = false;
  std::string kept_;
  std::thread thread_;
};

// What can be done about an mpirun that a signal has ended: only what is known of it.
std::string hint_for_signal(int number) {
  constexpr std::size_t least = 58;  // letters; found with OpenMPI 4.1.4
  if (number == SIGKILL)
    return "another program has killed it, or the kernel did for lack of memory: dmesg says so "
           "then";
  std::string hint = "mpirun -n 2 true shows whether mpirun works on this machine by itself";
  if (const std::string host = host_name(); host.size() >= least)
    hint += fmt::format(
        "; OpenMPI 4.1 crashes where the host's name has {} letters or more, and "
        "this one has {}",
        least, host.size());
  return hint;
}

// OpenMPI ends all processes where it cannot connect them, and mpirun --quiet does not say so.
Error unsaid(int code) {
  std::error_code error;
  const fs::space_info space = fs::space("/dev/shm", error);
  return {
      Stage::environment, "launch.mpirun", "",
      fmt::format("--processes: mpirun ended with exit code {} before its processes had met, "
                  "and none of them said why",
                  code),
      fmt::format("mpirun -n 2 hostname shows whether mpirun works; OpenMPI needs some MiB of "
                  "/dev/shm, which {}",
                  error ? "is not there"
                        : "has " + format_bytes(static_cast<double>(space.available)) + " left")};
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
  // Under nohup; blocked it would come all the same, and mpirun has its children heed it.
  if (hangup.sa_handler == SIG_IGN) sigdelset(&awaited, SIGHUP);
  sigprocmask(SIG_BLOCK, &awaited, &before);
  ::signal(SIGCHLD, SIG_DFL);  // where whoever started this ignores it, no exit code would be left
  const Leavings leavings;
  ProcessStart start;
  start.command = command_of(processes, leavings.folder(), words);
  start.signals_blocked = before;
  start.variables = {fmt::format("{}={}", token_variable, new_token())};
  if (const std::string lines = path_of_stdout(); !lines.empty())
    start.variables.push_back(fmt::format("{}={}", lines_variable, lines));
  start.variables.push_back("LD_PRELOAD=" + preloaded(leavings.folder()));
  const fs::path joined = fs::path(leavings.folder()) / "joined";
  if (!leavings.folder().empty())
    start.variables.push_back(fmt::format("{}={}", joined_variable, joined.string()));
  Words words_of_mpirun;
  start.error_output = words_of_mpirun.for_mpirun();
  const pid_t mpirun = start_mpirun(start);
  words_of_mpirun.begin();
  Copies copies(mpirun, processes);
  Farewell farewell(mpirun);
  bool stopped = false, ended_early = false;  // somebody wants an end; before a copy was there
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
    ::kill(mpirun, SIGTERM);  // which has started none yet
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  const int by_signal = stopped ? exit_interrupted : exit_code_of(Stage::run);
  if (ended > 0 && WIFSIGNALED(status) && !stopped) {
    const std::string last = words_of_mpirun.last();
    throw Error(
        Stage::run, "launch.mpirun", "",
        fmt::format("--processes: mpirun was ended by {}, and its processes with it{}",
                    signal_name(WTERMSIG(status)), last.empty() ? "" : "; its last words: " + last),
        hint_for_signal(WTERMSIG(status)));
  }
  if (ended < 0 || WIFSIGNALED(status)) return by_signal;
  const int code = WEXITSTATUS(status);
  constexpr int from_signals = 128;
  if (code > from_signals || (code != 0 && ended_early)) return by_signal;
  std::error_code error;
  if (code != 0 && !leavings.folder().empty() && !fs::exists(joined, error) &&
      words_of_mpirun.last().empty())
    throw unsaid(code);
  return code;
}

}  // namespace mw
