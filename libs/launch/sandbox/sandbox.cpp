// Sets up the limits of a sandbox, and watches the process in it from outside.
#include "launch/sandbox/sandbox.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>

#include "common/process.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"

namespace mw {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* variable = "MESHWRIGHT_SANDBOX";
constexpr const char* more_or_less = "or let the script do less";
constexpr std::size_t most_processes = 1024;
constexpr std::int64_t most_threads = 4096;
// Threads that the user may have beyond those that exist already. Does not limit root.
constexpr rlim_t most_tasks_more = most_threads;
constexpr std::chrono::seconds to_end{5};  // time from SIGTERM to SIGKILL
constexpr rlim_t most_open_files = 4096;   // per process, as nobody counts the memory of pipes
constexpr timespec between_looks{0, 100'000'000};

// --- What the program itself reads ---

void add_with_links(std::vector<fs::path>& paths, const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (!error) paths.push_back(real);
}

// Adds the folders of all loaded libraries, as these may load others from there later.
void add_libraries(std::vector<fs::path>& paths) {
  std::set<fs::path> folders;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (at == std::string::npos || line.find(".so") == std::string::npos) continue;
    folders.insert(fs::path(line.substr(at)).parent_path());
  }
  for (const fs::path& folder : folders) add_with_links(paths, folder);
}

fs::path dynamic_linker() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (at == std::string::npos) continue;
    const fs::path file = line.substr(at);
    if (file.filename().string().starts_with("ld-")) return file;
  }
  return {};
}

// Files that the C library and libtorch open by themselves. A script may not name them: the
// environment of this process can be read below /proc.
std::vector<fs::path> files_of_system() {
  std::vector<fs::path> paths;
  for (const char* path : {"/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/proc",
                           "/sys", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo",
                           "/dev/null", "/dev/random", "/dev/urandom"})
    add_with_links(paths, path);
  add_libraries(paths);
  add_with_links(paths, program_path());
  return paths;
}

// Files of the program that a script may name.
std::vector<fs::path> files_of_program() {
  std::vector<fs::path> paths;
  add_with_links(paths, share_folder());
  // In a build folder the entries are links into the source.
  std::error_code error;
  for (fs::directory_iterator entry(share_folder(), error), end; !error && entry != end;
       entry.increment(error))
    add_with_links(paths, entry->path());
  add_with_links(paths, cache_folder());
  if (const char* root = std::getenv("MESHWRIGHT_SYSTEM_ROOT")) add_with_links(paths, root);
  if (const char* file = std::getenv("MESHWRIGHT_CALIBRATION")) add_with_links(paths, file);
  return paths;
}

// --- Bounds ---

void require(bool done, const char* what) {
  if (done) return;
  throw Error(
      Stage::environment, "sandbox.kernel", "",
      fmt::format("the kernel does not {}: {}", what, std::generic_category().message(errno)),
      "run the script without --sandbox only if you trust it");
}

void bound(__rlimit_resource resource, rlim_t soft, rlim_t hard) {
  rlimit before{};
  ::getrlimit(resource, &before);
  const rlimit limit{std::min(soft, before.rlim_max), std::min(hard, before.rlim_max)};
  require(::setrlimit(resource, &limit) == 0, "bound what the script uses");
}

// The number of threads in all processes of this user.
rlim_t tasks_there() {
  rlim_t count = 0;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    std::ifstream status(entry->path() / "status");
    rlim_t user = 0, threads = 0;
    for (std::string word; status >> word;) {
      if (word == "Uid:") status >> user;
      if (word == "Threads:" && status >> threads && user == ::getuid()) count += threads;
    }
  }
  return count;
}

std::int64_t cpu_of(const Sandbox& sandbox) {
  return sandbox.cpu > 0 ? sandbox.cpu : sandbox.time * core_count();
}

void bound_resources(const Sandbox& sandbox) {
  const auto memory = static_cast<rlim_t>(sandbox.memory);
  bound(RLIMIT_DATA, memory, memory);
  const auto cpu = static_cast<rlim_t>(cpu_of(sandbox));
  bound(RLIMIT_CPU, cpu, cpu + static_cast<rlim_t>(to_end.count()));
  rlimit open{};
  ::getrlimit(RLIMIT_NOFILE, &open);
  bound(RLIMIT_NOFILE, std::min(open.rlim_cur, most_open_files), most_open_files);
  bound(RLIMIT_CORE, 0, 0);  // the kernel writes core dumps past every limit on files
  const rlim_t tasks = tasks_there() + most_tasks_more;
  bound(RLIMIT_NPROC, tasks, tasks);
}

template <class Paths>
Json texts_of(const Paths& paths) {
  Json texts = Json::array();
  for (const fs::path& path : paths) texts.push_back(path.string());
  return texts;
}

std::string text_of(const Sandbox& sandbox) {
  return json_text({{"read", texts_of(sandbox.read)},
                    {"write", texts_of(sandbox.write)},
                    {"plugins", texts_of(sandbox.plugins)},
                    {"devices", sandbox.devices},
                    {"memory", sandbox.memory},
                    {"cpu", sandbox.cpu},
                    {"time", sandbox.time}});
}

// --- The process outside ---

std::atomic<pid_t> bound_process = 0;

extern "C" void pass_signal_on(int number, siginfo_t* info, void*) {
  const int before = errno;
  const pid_t to = bound_process;
  // A signal from the terminal (SI_KERNEL) reaches that process by itself.
  if (to > 0 && info->si_code != SI_KERNEL) ::kill(to, number);
  errno = before;
}

void pass_signals_on() {
  struct sigaction action {};
  action.sa_sigaction = pass_signal_on;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction known {};
    sigaction(number, nullptr, &known);
    if (known.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
}

void descendants_of(pid_t process, std::set<pid_t>& found) {
  for (const pid_t child : children_of(process))
    if (found.insert(child).second && found.size() < 4 * most_processes)
      descendants_of(child, found);
}

struct ProcessMemory {
  std::optional<std::int64_t> bytes;  // memory that no file backs
  std::int64_t threads = 0;
};

// What a thread's status file says of its process; no bytes if the thread has ended.
ProcessMemory held_as_of(const fs::path& thread) {
  std::ifstream status(thread / "status");
  ProcessMemory held;
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t number = 0;
    words >> name >> number;
    if (name == "Threads:") held.threads = number;
    for (const char* kind : {"RssAnon:", "RssShmem:", "VmPTE:", "VmSwap:", "HugetlbPages:"})
      if (name == kind) held.bytes = held.bytes.value_or(0) + number * 1024;
  }
  return held;
}

// If the first thread of a process has ended, only its other threads' files say how much memory it
// has.
ProcessMemory held_by(pid_t process) {
  const fs::path folder = fmt::format("/proc/{}", process);
  ProcessMemory held = held_as_of(folder);
  std::error_code error;
  for (fs::directory_iterator thread(folder / "task", error), end;
       !held.bytes && !error && thread != end; thread.increment(error))
    held.bytes = held_as_of(thread->path()).bytes;
  return held;
}

class Watch {
 public:
  Watch(const Sandbox& sandbox, pid_t process) : sandbox_(sandbox), process_(process) {}

  // Waits for the process and returns its status, as waitpid() gives it.
  int wait() {
    sigset_t child{};
    sigaddset(&child, SIGCHLD);
    int status = 0;
    while (::waitpid(process_, &status, WNOHANG) == 0) {
      look();
      ::sigtimedwait(&child, nullptr, &between_looks);
    }
    end_others();
    return status;
  }

  // Why the process was ended; nothing: it has ended by itself, with an exit code.
  std::optional<Error> reason(int status) const {
    if (reason_) return reason_;
    if (!WIFSIGNALED(status)) return std::nullopt;
    const int number = WTERMSIG(status);
    rusage used{};
    ::getrusage(RUSAGE_CHILDREN, &used);
    const auto cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec;
    if (number == SIGXCPU || (number == SIGKILL && cpu >= cpu_of(sandbox_)))
      return Error(Stage::run, "sandbox.cpu", "",
                   fmt::format("the script has used {} s of CPU time, the limit of its sandbox",
                               cpu_of(sandbox_)),
                   fmt::format("allow more: --sandbox-cpu SECONDS; {}", more_or_less));
    return Error(
        Stage::run, "sandbox.crashed", "",
        fmt::format("the process in the sandbox was ended by {}", signal_name(number)),
        "no limit of the sandbox was reached; the same script without --sandbox tells whether "
        "the sandbox matters");
  }

 private:
  void look() {
    std::set<pid_t> processes;
    descendants_of(::getpid(), processes);
    std::int64_t held = 0, threads = 0;
    for (const pid_t process : processes) {
      const ProcessMemory one = held_by(process);
      held += one.bytes.value_or(0);
      threads += one.threads;
    }
    const auto now = Clock::now();
    if (held > sandbox_.memory && !reason_) {
      end(SIGKILL, Error(Stage::run, "sandbox.memory", "",
                         fmt::format("the script holds {}, and its sandbox allows {}",
                                     format_bytes(static_cast<double>(held)),
                                     format_bytes(static_cast<double>(sandbox_.memory))),
                         fmt::format("allow more: --sandbox-memory BYTES; {}", more_or_less)));
    } else if (processes.size() > most_processes && !reason_) {
      end(SIGKILL,
          Error(Stage::run, "sandbox.processes", "",
                fmt::format("the script has started more than {} processes", most_processes),
                "run fewer cells of a sweep at a time: --workers N"));
    } else if (threads > most_threads && !reason_) {
      end(SIGKILL, Error(Stage::run, "sandbox.processes", "",
                         fmt::format("the script has started more than {} threads", most_threads),
                         "let the script do less"));
    } else if (now > begun_ + std::chrono::seconds(sandbox_.time) && !reason_) {
      asked_ = now;
      end(SIGTERM, Error(Stage::run, "sandbox.time", "",
                         fmt::format("the script has run for {} s, the time limit of its "
                                     "sandbox",
                                     sandbox_.time),
                         fmt::format("allow more: --sandbox-time SECONDS; {}", more_or_less)));
    } else if (asked_ && now > *asked_ + to_end) {
      ::kill(process_, SIGKILL);
    }
  }
  void end(int signal, Error why) {
    reason_ = std::move(why);
    ::kill(process_, signal);
  }
  // Kills the processes that the bound one has left behind, which are children of this one by now.
  void end_others() const {
    for (int round = 0; round < 1000; ++round) {
      std::set<pid_t> left;
      descendants_of(::getpid(), left);
      if (left.empty()) return;
      for (const pid_t process : left) ::kill(process, SIGKILL);
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const Sandbox& sandbox_;
  const pid_t process_;
  const Clock::time_point begun_ = Clock::now();
  std::optional<Clock::time_point> asked_;
  std::optional<Error> reason_;
};

}  // namespace

void bind_process(const Sandbox& sandbox) {
  const int version = landlock_version();
  if (version == 0 && sandbox.needs_kernel) {
    throw Error(
        Stage::environment, "sandbox.kernel", "",
        "--sandbox=require: this kernel has no Landlock, which keeps native code in a "
        "sandbox",
        "a kernel of 5.13 or later that is built with it; or --sandbox, which then loads no "
        "plugins but those that come with the program");
  }
  bound_resources(sandbox);
  ::setenv(variable, text_of(sandbox).c_str(), 1);
  const fs::path own_plugins =
      program_path().parent_path().parent_path() / "lib/meshwright/plugins";
  FileBounds bounds;
  bounds.read = files_of_program();
  bounds.read.push_back(own_plugins);
  for (const auto* more : {&sandbox.read, &sandbox.plugins})
    bounds.read.insert(bounds.read.end(), more->begin(), more->end());
  bounds.write = sandbox.write;
  if (version == 0) bounds.plugins = {own_plugins};
  FileAccess reach{files_of_system(), sandbox.write, {}};
  reach.read.insert(reach.read.end(), bounds.read.begin(), bounds.read.end());
  bounds.write.emplace_back("/dev/null");
  reach.write.emplace_back("/dev/null");
  const bool drives = !sandbox.drives.empty();
  reach.write.insert(reach.write.end(), sandbox.drives.begin(), sandbox.drives.end());
  if (drives) {
    add_with_links(reach.read, "/dev/zero");      // drivers map it as shared memory
    reach.write.emplace_back("/proc/self/task");  // drivers name their threads there
  }
  if (sandbox.starts_processes) reach.run = {program_path(), dynamic_linker()};
  bound_files(std::move(bounds));
  drop_capabilities();
  if (version > 0) {
    require(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "keep a process from new privileges");
    restrict_files(reach);
  }
  restrict_calls(sandbox.starts_processes, drives);
}

std::optional<int> run_bound(const Sandbox& sandbox,
                             const std::function<void(const Error&)>& tell) {
  sigset_t child{}, before{};
  sigaddset(&child, SIGCHLD);
  ::signal(SIGCHLD, SIG_DFL);  // if a parent left it ignored, waitpid() would tell of no end
  sigprocmask(SIG_BLOCK, &child, &before);
  require(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "hand over what the script starts");
  const pid_t process = fork_tied(SIGKILL);
  if (process < 0)
    throw Error(Stage::run, "run.exception", "", "the script's process does not start");
  if (process == 0) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    require(::close_range(3, ~0U, 0) == 0, "close the files of this program");
    bind_process(sandbox);
    return std::nullopt;
  }
  bound_process = process;
  pass_signals_on();
  Watch watch(sandbox, process);
  const int status = watch.wait();
  const std::optional<Error> reason = watch.reason(status);
  if (!reason) return WEXITSTATUS(status);
  tell(*reason);
  return reason->exit_code();
}

std::optional<Sandbox> inherited_sandbox() {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Sandbox{};
  Sandbox sandbox;
  const auto paths = [&](const char* key) {
    std::vector<fs::path> found;
    for (const Json& path : json.value(key, Json::array()))
      if (path.is_string()) found.emplace_back(path.get<std::string>());
    return found;
  };
  sandbox.read = paths("read");
  sandbox.write = paths("write");
  sandbox.plugins = paths("plugins");
  for (const fs::path& name : paths("devices")) sandbox.devices.push_back(name);
  sandbox.memory = json.value("memory", sandbox.memory);
  sandbox.cpu = json.value("cpu", sandbox.cpu);
  sandbox.time = json.value("time", sandbox.time);
  return sandbox;
}

}  // namespace mw
