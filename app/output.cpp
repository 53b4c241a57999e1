// Writes results and text to stdout, notes and errors to stderr, always whole lines; with
// --json, stdout has one object a line.
#include "app/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "launch/processes.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr int unknown_failure = -1;

// The errno of the first failed write to stdout; 0: none failed. A closed pipe does not count, as
// nobody reads it any more.
int stdout_failure = 0;

void note_failure(int reason) {
  if (stdout_failure == 0 && reason != EPIPE) stdout_failure = reason;
}

// Writes complete lines only, so that a reader never sees half an object.
void write_all(int file, const std::string& text) {
  if (!write_whole(file, text.data(), text.size()) && file != STDERR_FILENO) note_failure(errno);
}

// Flushes the C library's buffer of stdout, which a script's print fills. The C library does not
// keep the errno of a write that failed before.
void flush_stdout() {
  if (std::fflush(stdout) != 0) {
    note_failure(errno);
  } else if (std::ferror(stdout) != 0) {
    pollfd closed{STDOUT_FILENO, POLLOUT, 0};
    ::poll(&closed, 1, 0);
    note_failure((closed.revents & POLLERR) != 0 ? EPIPE : unknown_failure);
  }
  std::clearerr(stdout);
}

// Opens the file for results that the process which started this one names in lines_variable; -1:
// there is none. Unsets the variable, as processes started from here have stdouts of their own.
int file_of_lines() {
  const char* path = std::getenv(lines_variable);
  if (path == nullptr) return -1;
  // Without O_NONBLOCK, this would wait for a pipe that nobody reads any more.
  const int file = ::open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  ::unsetenv(lines_variable);
  if (file >= 0) ::fcntl(file, F_SETFL, O_APPEND);
  return file;
}

std::string with_newline(const std::string& text) {
  return text.empty() || text.back() == '\n' ? text : text + '\n';
}

// Names in run files, scripts and plugins may have control characters, which are made readable.
std::string for_people(const std::string& text) {
  return with_newline(readable(text));
}

}  // namespace

int with_stdout_written(int code) {
  flush_stdout();
  if (stdout_failure == 0) return code;
  Output(/*json=*/false)
      .error(Error(Stage::run, "output.lost", "",
                   fmt::format("stdout cannot be written{}; what this command says is lost there",
                               stdout_failure == unknown_failure
                                   ? ""
                                   : ": " + std::generic_category().message(stdout_failure)),
                   "make room, or send stdout to another place, and run the command again"));
  return code == 0 ? exit_code_of(Stage::run) : code;
}

Output::Output(bool json, bool quiet) : json_(json), quiet_(quiet) {
  const char* no_colour = std::getenv("NO_COLOR");
  colour_ = ::isatty(STDERR_FILENO) != 0 && (no_colour == nullptr || *no_colour == '\0');
  if (json_) keep_stdout();
  if (const int file = json_ ? -1 : file_of_lines(); file >= 0) {
    flush_stdout();
    ::dup2(file, STDOUT_FILENO);
    ::close(file);
  }
}

void Output::keep_stdout() {
  if (lines_ != STDOUT_FILENO) return;
  flush_stdout();
  lines_ = json_ ? file_of_lines() : -1;
  if (lines_ < 0) lines_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (lines_ < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    throw Error(Stage::environment, "output.closed", "",
                json_ ? "--json: stdout is closed" : "stdout is closed",
                json_ ? "leave stdout open, or leave out --json" : "leave stdout open");
  }
}

void Output::mute() {
  muted_ = quiet_ = true;
  flush_stdout();
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) return;
  ::dup2(nowhere, STDOUT_FILENO);
  ::close(nowhere);
}

void Output::give_stdout_back() {
  if (lines_ == STDOUT_FILENO) return;
  flush_stdout();
  ::dup2(lines_, STDOUT_FILENO);
  ::close(lines_);
  lines_ = STDOUT_FILENO;
}

void Output::result(const Json& object) {
  if (!json_ || muted_) return;
  Json line = object;
  if (line.is_object()) line.erase("text");
  write_all(lines_, json_text(line) + '\n');
}

void Output::text(const std::string& text) {
  if (quiet_) return;
  flush_stdout();
  write_all(STDOUT_FILENO, for_people(text));
}

void Output::document(const std::string& text) {
  if (muted_) return;
  flush_stdout();
  const int file = json_ ? STDERR_FILENO : lines_;
  write_all(file, ::isatty(file) != 0 ? for_people(text) : with_newline(text));
}

void Output::note(const std::string& text) {
  if (!quiet_) warn(text);
}

void Output::warn(const std::string& text) {
  if (!muted_) write_all(STDERR_FILENO, for_people(text));
}

void Output::error(const Error& error) {
  flush_stdout();
  std::string text;
  for (const Problem& problem : error.problems()) {
    text += colour_ ? "\033[1;31merror:\033[0m " : "error: ";
    text += readable(problem.text()) + '\n';
    if (!problem.hint.empty()) text += "       " + readable(problem.hint) + '\n';
    Json line = json_of(problem);
    line["kind"] = "error";
    result(line);
  }
  write_all(STDERR_FILENO, with_newline(text));
  if (const char* file = std::getenv(joined_variable)) std::ofstream{file};
}

}  // namespace mw
