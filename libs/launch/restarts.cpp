// Starts a script again after a run that failed: decides by the exit code, and by the report that
// the run left in a file, whether that can help, and waits longer each time.
#include "launch/restarts.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>

#include "common/files.h"
#include "common/process.h"
#include "common/run_timing.h"
#include "launch/processes.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/threads.h"

namespace mw {
namespace {

constexpr std::int64_t longest_wait = 60;  // seconds
constexpr const char* report_name = "meshwright-report";
constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

std::atomic<pid_t> child = 0;
std::atomic<bool> stopped = false;

// A signal from the terminal (SI_KERNEL) reaches the child by itself, which is in the same group.
extern "C" void pass_on(int number, siginfo_t* info, void*) {
  const int before = errno;
  stopped = true;
  const pid_t to = child;
  if (to > 0 && info->si_code != SI_KERNEL) ::kill(to, number);
  errno = before;
}

// Installs the handlers that pass signals on to the child.
class PassingOn {
 public:
  PassingOn() {
    struct sigaction action {};
    action.sa_sigaction = pass_on;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    for (const int number : signals) {
      struct sigaction known {};
      sigaction(number, nullptr, &known);
      if (known.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
    }
  }
};

// The file in which a run that failed leaves its report. It lies in memory, and its path is that of
// an open descriptor below /proc, so that nothing is left of it when this process is killed.
class ReportFile {
 public:
  ReportFile() : file_(::memfd_create(report_name, MFD_CLOEXEC)) {
    if (file_ < 0) {
      throw Error(Stage::environment, "file.write", "",
                  fmt::format("the report of a run that fails: cannot write it: {}",
                              std::generic_category().message(errno)));
    }
  }
  ~ReportFile() { ::close(file_); }
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;

  std::string path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_); }
  void clear() const { std::ofstream(path(), std::ios::trunc); }
  // The report of the last run that failed; nothing: none has reported.
  std::optional<Json> read() const {
    Json found = read_json(path());
    if (!found.is_object() || found.empty()) return std::nullopt;
    return found;
  }
  // Whether a process of the run has begun on this machine.
  bool begun() const { return read_json(path()).is_object(); }

 private:
  const int file_;
};

pid_t start(const std::string& launcher, std::vector<std::string> words) {
  const std::string program = program_path().string();
  std::vector<std::string> all = {program};
  // The shell reads a launcher as it would in a script, redirections included.
  if (!launcher.empty())
    all = {"/bin/sh", "-c", fmt::format("exec {} \"$@\"", launcher), "sh", program};
  all.insert(all.end(), words.begin(), words.end());
  ProcessStart process;
  process.command = std::move(all);
  try {
    return start_process(process);
  } catch (const std::system_error& error) {
    throw not_started("process.start", "process", error.code().value());
  }
}

int wait_for(pid_t process) {
  child = process;
  if (stopped) ::kill(process, SIGTERM);  // the signal came before the process was known
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  child = 0;
  return status;
}

// Waits for a time. False: a signal asked to end.
bool wait_for(std::chrono::seconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (!stopped && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return !stopped;
}

// How a start ended.
struct End {
  int code = 0;              // exit code; 1 where a signal ended it
  std::string reason;        // why the run failed
  std::optional<Json> left;  // the report of the run that failed
};

End end_of(int status, const ReportFile& report) {
  End end;
  end.left = report.read();
  if (WIFSIGNALED(status)) {
    end.code = exit_code_of(Stage::run);
    end.reason = "its process was ended by " + signal_name(WTERMSIG(status));
    return end;
  }
  end.code = WEXITSTATUS(status);
  end.reason = end.left ? end.left->value("message", "") : fmt::format("exit code {}", end.code);
  return end;
}

// For a launcher that has ended though no process of the run has begun on this machine; one may
// have on another. Throws Error (environment) if the launcher was not found.
void not_begun(const Restarts& restarts, int code,
               const std::function<void(const std::string&)>& say) {
  if (code == 126 || code == 127) {
    throw Error(Stage::environment, "launch.launcher", "",
                fmt::format("--launcher {}: exit code {}: the shell, or the launcher, finds no "
                            "program of this name that it can execute",
                            quote(restarts.launcher), code),
                "give the command as in a shell, by a name that is in PATH or by its path: "
                "--launcher \"mpirun -n 8\"");
  }
  say(
      fmt::format("--launcher {} ended with exit code {}, and no process of the run has begun on "
                  "this machine",
                  quote(restarts.launcher), code));
}

// Why another start would not help; empty: it may.
std::string futile(const End& end, const End& before, bool launched) {
  constexpr int from_signals = 128;  // exit codes above it: a signal ended a process
  if (end.code != exit_code_of(Stage::run) && end.code < from_signals)
    return fmt::format("exit code {} is no run that failed", end.code);
  if (!end.left) {
    if (launched || end.code > exit_code_of(Stage::run) || end.reason.starts_with("its process"))
      return "";
    return "no training has failed";
  }
  if (end.left->value("diverged", false)) return "NaN comes up again where the same is computed";
  const bool same = before.left && *end.left == *before.left;
  return same ? "it has failed so twice, at the same step" : "";
}

}  // namespace

int run_with_restarts(const Restarts& restarts, const std::vector<std::string>& words,
                      const std::function<void(const std::string&)>& say) {
  const PassingOn passing_on;
  const ReportFile report;
  const std::string command = new_token();
  End before;
  for (std::int64_t restart = 0;; ++restart) {
    std::vector<std::string> own = {"--attempt", json_text(Json{{"restart", restart},
                                                                {"of", restarts.most},
                                                                {"command", command},
                                                                {"after", before.reason},
                                                                {"report", report.path()}})};
    if (restart > 0) {
      for (const std::string& setting : restarts.settings) {
        own.emplace_back("--set");
        own.push_back(setting);
      }
    }
    // The options stand in front of the script's own arguments.
    std::vector<std::string> all = words;
    all.insert(std::find(all.begin(), all.end(), "--"), own.begin(), own.end());
    report.clear();
    End end = end_of(wait_for(start(restarts.launcher, std::move(all))), report);
    if (!restarts.launcher.empty() && !stopped && !report.begun())
      not_begun(restarts, end.code, say);
    if (end.code == 0) return 0;
    if (stopped || end.code == exit_interrupted) return exit_interrupted;
    if (restarts.most == 0) return end.code;
    if (const std::string why = futile(end, before, restarts.several || !restarts.launcher.empty());
        !why.empty()) {
      say(fmt::format("not started again: {}", why));
      return end.code;
    }
    if (restart == restarts.most) {
      say(fmt::format("not started again: {} of {} used up; it failed: {}", restarts.most,
                      plural(restarts.most, "restart"), end.reason));
      return end.code;
    }
    const std::int64_t wait =
        std::min(longest_wait, std::int64_t{1} << std::min<std::int64_t>(restart, 10));
    say(fmt::format("restart {} of {} in {} s: {}", restart + 1, restarts.most, wait, end.reason));
    if (!wait_for(std::chrono::seconds(wait))) return exit_interrupted;
    before = std::move(end);
  }
}

Attempt::Attempt(const std::string& json) {
  const Json told = json_in(json);
  if (!told.is_object()) return;
  const auto text = [&](const char* key) {
    const auto found = told.find(key);
    return found != told.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  restart_ = count_under(told, "restart");
  most_ = count_under(told, "of");
  mark_ = text("command");
  after_ = text("after");
  report_ = text("report");
  // On another machine the path may lead to another file, or to none.
  std::error_code error;
  const std::string file = std::filesystem::read_symlink(report_, error).string();
  if (!file.starts_with(fmt::format("/memfd:{}", report_name))) report_.clear();
  if (!report_.empty()) std::ofstream(report_, std::ios::trunc) << "{}";
}

Attempt Attempt::of_training(std::int64_t number) const {
  Attempt own = *this;
  if (!mark_.empty()) own.mark_ += fmt::format(".{}", number);
  return own;
}

std::string Attempt::text() const {
  if (restart_ == 0) return "";
  return fmt::format("restart {} of {}, after: {}", restart_, most_, after_);
}

void Attempt::failed(const Problem& problem, std::int64_t steps) const {
  if (report_.empty()) return;
  std::ofstream(report_, std::ios::trunc) << json_text(Json{{"code", problem.code},
                                                            {"message", problem.message},
                                                            {"steps", steps},
                                                            {"diverged", is_divergence(problem)}});
}

bool is_divergence(const Problem& problem) {
  return problem.code == "run.not-finite" || problem.code == "check.not-finite";
}

}  // namespace mw
