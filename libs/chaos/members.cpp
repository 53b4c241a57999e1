// Looks through the system's processes for those of one run.
#include "chaos/members.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/files.h"
#include "common/process.h"

namespace mw::chaos {
namespace {

namespace fs = std::filesystem;

constexpr rlim_t bytes_of_full_disk = 4096;

std::vector<std::string> words_of(pid_t process) {
  const auto all = whole_file(fmt::format("/proc/{}/cmdline", process));
  std::vector<std::string> words;
  std::istringstream stream(all.value_or(""));
  for (std::string word; std::getline(stream, word, '\0');) words.push_back(word);
  return words;
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    pid_t process = 0;
    const auto [stop, failed] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (failed == std::errc() && stop == name.data() + name.size()) found.push_back(process);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<pid_t> Members::all() const {
  std::vector<pid_t> both = ranks;
  both.insert(both.end(), launchers.begin(), launchers.end());
  return both;
}

// A process that starts others has an option for that among its words. A process that has ended,
// but whose parent has not asked for its status, has no words.
Members members_of(const fs::path& folder) {
  Members members;
  for (const pid_t process : all_processes()) {
    if (process == ::getpid()) continue;
    const std::vector<std::string> words = words_of(process);
    const auto has = [&](const char* word) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    if (!has(folder.c_str())) continue;
    const bool starts_others = has("--max-restarts") || has("--processes");
    (runs_this_program(process) && !starts_others ? members.ranks : members.launchers)
        .push_back(process);
  }
  return members;
}

std::string text_of_member(pid_t process) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK"}) {
    if (const std::string number = variable_of(process, name); !number.empty())
      return fmt::format("process {} ({})", number, process);
  }
  return fmt::format("process {}", process);
}

std::int64_t resident_bytes(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/statm", process));
  std::int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// The watcher gets SIGTERM when this process ends, and takes it then, not before.
Standstill::Standstill(std::vector<pid_t> processes) : processes_(std::move(processes)) {
  sigset_t end, before;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &end, &before);
  watcher_ = fork_tied(SIGTERM);
  if (watcher_ == 0) {
    int signal = 0;
    ::sigwait(&end, &signal);
    for (const pid_t each : processes_) ::kill(each, SIGCONT);
    ::_exit(0);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (const pid_t each : processes_) any_ = ::kill(each, SIGSTOP) == 0 || any_;
}

Standstill::~Standstill() {
  for (const pid_t each : processes_) ::kill(each, SIGCONT);
  if (watcher_ <= 0) return;
  ::kill(watcher_, SIGKILL);
  ::waitpid(watcher_, nullptr, 0);
}

void limit_files(pid_t process, bool limited) {
  rlimit limit{};
  if (::prlimit(process, RLIMIT_FSIZE, nullptr, &limit) != 0) return;  // it is gone
  limit.rlim_cur = limited ? std::min(bytes_of_full_disk, limit.rlim_max) : limit.rlim_max;
  ::prlimit(process, RLIMIT_FSIZE, &limit, nullptr);
}

}  // namespace mw::chaos
