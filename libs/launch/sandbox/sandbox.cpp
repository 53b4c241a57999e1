// Makes a sandbox of bubblewrap's namespaces and of limits of resources, and watches it from
// outside.
#include "launch/sandbox/sandbox.h"

#include <fmt/format.h>
#include <linux/keyctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <system_error>

#include "common/process.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/json.h"

namespace mw {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Paths = std::vector<fs::path>;

constexpr const char* variable = "MESHWRIGHT_SANDBOX";
constexpr std::chrono::seconds to_end{5};  // from SIGTERM to SIGKILL, and from SIGXCPU
constexpr rlim_t most_open_files = 4096;   // per process, as nobody counts the memory of pipes
constexpr rlim_t most_tasks = 4096;        // threads of all processes; does not limit root
constexpr timespec between_looks{0, 100'000'000};

Error no_sandbox(const std::string& why) {
  return Error(Stage::environment, "sandbox.kernel", "", "no sandbox can be made: " + why,
               "install the package bubblewrap, and let this user make user namespaces "
               "(docs/trust.md); or leave --sandbox out if you trust the script");
}

// --- What is in the sandbox ---

// Whether the path is one of these, or below one.
bool is_below(const fs::path& path, const std::set<fs::path>& folders) {
  return std::any_of(folders.begin(), folders.end(), [&](const fs::path& folder) {
    return (path / "").string().starts_with((folder / "").string());
  });
}

// Files that the C library and libtorch open by themselves, and that no script may name.
Paths files_of_system() {
  Paths paths = {"/usr/lib", "/usr/lib64",       "/usr/local/lib",      "/lib",          "/lib64",
                 "/sys",     "/etc/ld.so.cache", "/usr/share/zoneinfo", "/etc/localtime"};
  paths.push_back(program_path());
  // The loaded libraries may load others from their folders later; a home folder has other files
  // too.
  const char* home = std::getenv("HOME");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (at == std::string::npos || line.find(".so") == std::string::npos) continue;
    const fs::path file = line.substr(at), folder = file.parent_path();
    const bool of_home = home != nullptr && is_below(home, {folder});
    paths.push_back(of_home ? file : folder);
  }
  return paths;
}

// All that a script may name for reading.
Paths readable(const Sandbox& sandbox) {
  Paths paths = {share_folder(), cache_folder(),
                 program_path().parent_path().parent_path() / "lib/meshwright/plugins"};
  // In a build folder the entries are links into the source.
  std::error_code error;
  for (fs::directory_iterator entry(share_folder(), error), end; !error && entry != end;
       entry.increment(error))
    paths.push_back(entry->path());
  for (const char* name : {"MESHWRIGHT_SYSTEM_ROOT", "MESHWRIGHT_CALIBRATION"})
    if (const char* file = std::getenv(name)) paths.emplace_back(file);
  for (const Paths* more : {&sandbox.read, &sandbox.plugins})
    paths.insert(paths.end(), more->begin(), more->end());
  return paths;
}

// What bubblewrap puts into the sandbox. All else is missing there.
class Mounts {
 public:
  Mounts() : how_{{"/dev", "--dev"}, {"/proc", "--proc"}} {}

  // What was added first counts. Leaves out what does not exist.
  void add(const Paths& paths, const char* how) {
    for (const fs::path& path : paths) {
      std::error_code error;
      const fs::path place = fs::canonical(path, error);
      if (error) continue;
      how_.emplace(place, how);
      fs::path name = fs::absolute(path).lexically_normal();
      if (!name.has_filename()) name = name.parent_path();
      if (name != place) links_.emplace(name, place);
    }
  }
  // Folders come before what is below them, as otherwise they would hide it.
  void add_to(std::vector<std::string>& words) const {
    std::set<fs::path> there;
    for (const auto& [place, how] : how_) {
      const bool bound = how != "--dev" && how != "--proc";
      if (how == "--ro-bind" && is_below(place, there)) continue;
      words.insert(words.end(), {how, place});
      if (bound) words.push_back(place);
      if (bound) there.insert(place);
    }
    for (const auto& [name, place] : links_) {
      if (is_below(name, there)) continue;
      words.insert(words.end(), {"--symlink", place, name});
      there.insert(name);
    }
  }

 private:
  std::map<fs::path, std::string> how_;
  std::map<fs::path, fs::path> links_;  // names by which the program or the script calls them
};

std::vector<std::string> in_namespaces() {
  return {"bwrap",         "--unshare-user", "--disable-userns", "--unshare-ipc",
          "--unshare-pid", "--unshare-net",  "--unshare-uts",    "--cap-drop",
          "ALL",           "--new-session",  "--die-with-parent"};
}

std::vector<std::string> command_of(const Sandbox& sandbox, const std::vector<std::string>& words) {
  Mounts mounts;
  mounts.add(sandbox.write, "--bind");
  mounts.add(sandbox.drives, "--dev-bind");
  mounts.add(files_of_system(), "--ro-bind");
  mounts.add(readable(sandbox), "--ro-bind");
  std::vector<std::string> command = in_namespaces();
  mounts.add_to(command);
  const std::string here = fs::current_path();
  // What bubblewrap makes in memory itself is no place to write to.
  command.insert(command.end(), {"--dir", here, "--remount-ro", "/dev", "--remount-ro", "/",
                                 "--chdir", here, "--", program_path()});
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

// --- Limits of a process ---

void bound(__rlimit_resource resource, rlim_t soft, rlim_t hard) {
  rlimit before{};
  ::getrlimit(resource, &before);
  const rlimit limit{std::min(soft, before.rlim_max), std::min(hard, before.rlim_max)};
  if (::setrlimit(resource, &limit) != 0)
    throw no_sandbox("the kernel sets no limits: " + std::generic_category().message(errno));
}

std::int64_t cpu_of(const Sandbox& sandbox) {
  return sandbox.cpu > 0 ? sandbox.cpu : sandbox.time * core_count();
}

// Also bounds what a process maps beyond the program itself, as shared memory and stacks are no
// data. Drivers of devices, however, reserve more addresses than there is memory.
void bound_memory(const Sandbox& sandbox) {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t program = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  const auto memory = static_cast<rlim_t>(sandbox.memory);
  bound(RLIMIT_DATA, memory, memory);
  if (sandbox.devices.empty()) bound(RLIMIT_AS, program + memory, program + memory);
}

std::string text_of(const Sandbox& sandbox) {
  const auto texts = [](const Paths& paths) {
    return std::vector<std::string>(paths.begin(), paths.end());
  };
  return json_text({{"read", texts(sandbox.read)},
                    {"write", texts(sandbox.write)},
                    {"plugins", texts(sandbox.plugins)},
                    {"devices", sandbox.devices},
                    {"memory", sandbox.memory},
                    {"cpu", sandbox.cpu},
                    {"time", sandbox.time}});
}

// --- The process outside ---

// The program below bubblewrap's first process in the sandbox; that of bubblewrap itself, which
// ends with all below it, as long as there is no program.
pid_t program_below(pid_t bwrap) {
  for (const pid_t first : children_of(bwrap))
    for (const pid_t program : children_of(first)) return program;
  return bwrap;
}

// Waits until bubblewrap ends, and passes on the signals of the set. Returns whether the time limit
// was reached.
bool wait_for(pid_t bwrap, const Sandbox& sandbox, const sigset_t& signals, int& status) {
  const auto late = Clock::now() + std::chrono::seconds(sandbox.time);
  bool asked = false;
  while (!child_ended(bwrap, status)) {
    const int number = ::sigtimedwait(&signals, nullptr, &between_looks);
    if (number > 0 && number != SIGCHLD) ::kill(program_below(bwrap), number);
    if (Clock::now() > late && !asked) ::kill(program_below(bwrap), SIGTERM);
    asked = Clock::now() > late;
    if (Clock::now() > late + to_end) ::kill(bwrap, SIGKILL);
  }
  return asked;
}

// The exit code of the program, from the status of bubblewrap. Throws Error if a signal ended it.
int code_of(int status, const Sandbox& sandbox) {
  const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  const int number = code - 128;
  if (number <= 0 || number == SIGINT) return code;
  rusage used{};
  ::getrusage(RUSAGE_CHILDREN, &used);
  const std::int64_t cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec;
  if (number == SIGXCPU || (number == SIGKILL && cpu >= cpu_of(sandbox)))
    throw Error(Stage::run, "sandbox.cpu", "",
                fmt::format("the script has used {} s of CPU time, the limit of its sandbox",
                            cpu_of(sandbox)),
                "allow more: --sandbox-cpu SECONDS; or let the script do less");
  throw Error(Stage::run, "sandbox.crashed", "",
              fmt::format("the process in the sandbox was ended by {}", signal_name(number)),
              "no limit of the sandbox was reached; the same script without --sandbox tells "
              "whether the sandbox matters");
}

pid_t start(ProcessStart how) {
  how.own_group = true;  // Ctrl-C in a terminal would end bubblewrap, and the program with it
  how.tied_by = SIGKILL;
  ::signal(SIGCHLD, SIG_DFL);  // if a parent left it ignored, waitpid() would tell of no end
  try {
    return start_process(how);
  } catch (const std::system_error& error) {
    throw no_sandbox("bwrap does not start: " + error.code().message());
  }
}

}  // namespace

std::optional<Error> why_no_sandbox() {
  ProcessStart probe;
  probe.command = in_namespaces();
  probe.command.insert(probe.command.end(), {"--ro-bind", "/", "/", "--proc", "/proc", "true"});
  probe.output = "/dev/null";
  try {
    int status = 0;
    const pid_t child = start(probe);
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (status == 0) return std::nullopt;
    return no_sandbox("this machine lets bwrap make no user namespaces");
  } catch (const Error& error) {
    return error;
  }
}

int run_bound(const Sandbox& sandbox, const std::vector<std::string>& words) {
  if (const auto why = why_no_sandbox()) throw *why;
  sigset_t signals{}, before{};
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&signals, number);
  sigprocmask(SIG_BLOCK, &signals, &before);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  ProcessStart inside;
  inside.command = command_of(sandbox, words);
  inside.variables = {std::string(variable) + "=" + text_of(sandbox)};
  inside.signals_blocked = before;
  int status = 0;
  const bool late = wait_for(start(inside), sandbox, signals, status);
  // When bubblewrap ends, the kernel ends every process in the sandbox. The sandbox's first process
  // then becomes a child of this process, and this loop waits until it has ended.
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
  if (!late) return code_of(status, sandbox);
  throw Error(
      Stage::run, "sandbox.time", "",
      fmt::format("the script has run for {} s, the time limit of its sandbox", sandbox.time),
      "allow more: --sandbox-time SECONDS; or let the script do less");
}

void bind_process(const Sandbox& sandbox) {
  const auto cpu = static_cast<rlim_t>(cpu_of(sandbox));
  bound(RLIMIT_CPU, cpu, cpu + static_cast<rlim_t>(to_end.count()));
  bound(RLIMIT_NOFILE, most_open_files, most_open_files);
  bound(RLIMIT_NPROC, most_tasks, most_tasks);
  bound(RLIMIT_CORE, 0, 0);  // the kernel may write core dumps outside of the sandbox
  bound_memory(sandbox);
  // Namespaces leave the keys of the user's session reachable.
  ::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr);
  FileBounds bounds{readable(sandbox), sandbox.write};
  bounds.write.emplace_back("/dev/null");
  bound_files(std::move(bounds));
}

std::optional<Sandbox> inherited_sandbox() {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  Sandbox sandbox;
  try {
    const Json json = Json::parse(text);
    const auto paths = [&](const char* key) {
      const auto texts = json.value(key, std::vector<std::string>());
      return Paths(texts.begin(), texts.end());
    };
    sandbox.read = paths("read");
    sandbox.write = paths("write");
    sandbox.plugins = paths("plugins");
    sandbox.devices = json.value("devices", sandbox.devices);
    sandbox.memory = json.value("memory", sandbox.memory);
    sandbox.cpu = json.value("cpu", sandbox.cpu);
    sandbox.time = json.value("time", sandbox.time);
  } catch (const Json::exception&) {  // somebody else has set the variable: the least is allowed
    return Sandbox{};
  }
  return sandbox;
}

}  // namespace mw
