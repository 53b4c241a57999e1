// Starts cells as processes of their own, and reads from how they ended what happened to them.
#include "app/sweep/child.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "meshwright/engine/control_groups.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

constexpr std::size_t last_words = 4096;

// The number behind `key` in a file of counters, such as memory.events; -1: none.
std::int64_t kills_in(const std::filesystem::path& folder, const char* file, const char* key) {
  std::ifstream stream(folder / file);
  std::string word;
  std::int64_t count = 0;
  while (stream >> word >> count) {
    if (word == key) return count;
  }
  return -1;
}

std::string tail_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  if (!stream) return "";
  const auto size = static_cast<std::size_t>(stream.tellg());
  const std::size_t from = size > last_words ? size - last_words : 0;
  stream.seekg(static_cast<std::streamoff>(from));
  std::string text(size - from, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  return readable(text);
}

// Whether the line is one that every cell prints: of the plan, whose further lines are indented, or
// about a stop signal.
bool says_nothing(const std::string& line) {
  return line.empty() || std::string_view(" \t\r").find(line.front()) != std::string_view::npos ||
         line.starts_with("plan ") || line.starts_with("stopping");
}

// The last line that has "error: …" or what(); else the last line that not every cell prints.
std::string words_of(const std::string& tail) {
  std::istringstream lines(tail);
  std::string line, last, telling;
  while (std::getline(lines, line)) {
    if (line.starts_with("error: ") || line.find("what():") != std::string::npos) telling = line;
    if (!says_nothing(line)) last = line;
  }
  std::string words = telling.empty() ? last : telling;
  words.erase(0, words.find_first_not_of(" \t"));
  return words.starts_with("error: ") ? words.substr(7) : words;
}

}  // namespace

pid_t start_child(ProcessStart start) {
  start.program = "/proc/self/exe";  // this program, whatever file has its path by now
  start.command.insert(start.command.begin(), "meshwright");
  start.own_group = start.fresh_signals = true;
  start.tied_by = SIGKILL;
  try {
    return start_process(start);
  } catch (const std::system_error& error) {
    throw Error(Stage::run, "run.exception", "",
                fmt::format("a cell's process does not start: {}", error.code().message()));
  }
}

std::int64_t allocated_here() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::int64_t kibibytes = 0;
    if (word == "VmData:" && file >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

std::int64_t kills_for_memory() {
  for (const ControlGroup& of : control_groups("memory")) {
    const char* const file = of.first_version ? "memory.oom_control" : "memory.events";
    const std::int64_t kills = kills_in(of.folder, file, "oom_kill");
    if (kills >= 0) return kills;
  }
  // No control group can be seen: count the kills of the whole machine.
  return kills_in("/proc", "vmstat", "oom_kill");
}

std::string reason_of_end(int status, const std::string& output, bool killed_for_memory) {
  const std::string tail = tail_of(output), words = words_of(tail);
  const std::string said = words.empty() ? "" : "; its last words: " + words;
  const bool no_memory = tail.find("bad_alloc") != std::string::npos ||
                         tail.find("can't allocate memory") != std::string::npos;
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    if (number == SIGKILL && killed_for_memory)
      return "out of memory: killed by the kernel, as its control group or the machine had none "
             "left";
    if (number == SIGKILL)
      return "killed by SIGKILL: by somebody, or by the kernel as the machine was out of memory" +
             said;
    const std::string ended = fmt::format("{} ({})", signal_name(number), ::strsignal(number));
    if (no_memory) return fmt::format("out of memory: it ended by {}{}", ended, said);
    return fmt::format("crashed: {}{}", ended, said);
  }
  const int code = WEXITSTATUS(status);
  if (no_memory) return fmt::format("out of memory: it ended with exit code {}{}", code, said);
  return fmt::format("ended with exit code {} and without a result{}", code, said);
}

}  // namespace mw
