// Starts a Python package with the path of a file that says what to do, the path of a file for its
// answer, and a socket for its questions.
#include "common/python.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "common/files.h"
#include "common/process.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

// MESHWRIGHT_PYTHON, or else the Python for which the launcher has installed packages.
std::string python() {
  const char* const given = std::getenv("MESHWRIGHT_PYTHON");
  if (given != nullptr && *given != '\0') return given;
  const std::filesystem::path installed = cache_folder() / "figures/bin/python";
  return ::access(installed.c_str(), X_OK) == 0 ? installed.string() : "python3";
}

Error error_in(const Json& list) {
  std::vector<Problem> problems;
  for (const Json& one : list) {
    problems.push_back({Stage::options, one["code"], one.value("key", ""), one["message"],
                        one["hint"], one.value("place", "")});
    for (const Stage stage : {Stage::script, Stage::plan, Stage::run, Stage::environment})
      if (one["stage"] == name_of(stage)) problems.back().stage = stage;
  }
  return Error(std::move(problems));
}

// Answers the questions of a package: each is a line of JSON, and so is each answer.
class Questions {
 public:
  explicit Questions(const std::function<Json(const Json&)>& reply) : reply_(reply) {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_) != 0)
      throw std::system_error(errno, std::generic_category());
  }
  ~Questions() {
    for (const int end : ends_) ::close(end);
  }
  Questions(const Questions&) = delete;
  Questions& operator=(const Questions&) = delete;

  int other_end() const { return ends_[1]; }

  // Answers the questions that come within `milliseconds`.
  void answer(int milliseconds) {
    pollfd asked{ends_[0], POLLIN, 0};
    char block[1 << 16];
    if (::poll(&asked, 1, milliseconds) <= 0) return;
    const ssize_t got = ::read(ends_[0], block, sizeof block);
    if (got > 0) text_.append(block, static_cast<std::size_t>(got));
    for (std::size_t end; (end = text_.find('\n')) != std::string::npos;) {
      const std::string line = answer_to(json_in(text_.substr(0, end)));
      text_.erase(0, end + 1);
      write_whole(ends_[0], line.data(), line.size());
    }
  }

 private:
  std::string answer_to(const Json& question) const {
    Json answer;
    try {
      answer["answer"] = reply_(question);
    } catch (const Error& error) {
      if (ends_all(error)) throw;
      answer["problems"] = json_of(error.problems());
    }
    return answer.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }

  const std::function<Json(const Json&)>& reply_;
  int ends_[2] = {-1, -1};
  std::string text_;  // text that was read and not yet answered
};

// Answers the process' questions until it ends; true if it ends with status 0.
bool ends_well(pid_t process, Questions& questions) {
  int status = 0;
  try {
    for (bool asked = false; !child_ended(process, status);) {
      if (stop_requested() && !asked) asked = ::kill(process, SIGTERM) == 0;
      questions.answer(/*milliseconds=*/10);
    }
  } catch (...) {
    ::kill(process, SIGTERM);
    ::waitpid(process, nullptr, 0);
    throw;
  }
  return status == 0;
}

}  // namespace

Json json_of(const std::vector<Problem>& problems) {
  Json list = Json::array();
  for (const Problem& problem : problems) {
    list.push_back(json_of(problem));
    list.back()["place"] = problem.place;
  }
  return list;
}

Json answer_of(const PythonPackage& package, const Json& request,
               const std::function<Json(const Json& question)>& reply) {
  namespace fs = std::filesystem;
  const fs::path program = share_folder() / "python" / package.name;
  if (!fs::exists(program / "__main__.py")) {
    throw Error(Stage::environment, "file.missing", "",
                fmt::format("{} is not there, which {}", program.string(), package.does),
                "build or install the program anew");
  }
  const WorkFolder work("mw-python-");
  const std::string asked = (work.path() / "request").string(),
                    answer = (work.path() / "answer").string(),
                    log = (work.path() / "log").string();
  write_output({package.asked_by, asked, OutputKind::any},
               request.dump(-1, ' ', false, Json::error_handler_t::replace));
  Questions questions(reply);
  ProcessStart start;
  start.lock = questions.other_end();
  start.command = {python(), "-B", program.string(), asked, answer, std::to_string(start.lock)};
  start.output = package.speaks ? "" : log;
  start.own_group = package.speaks;  // this process passes Ctrl-C on, once
  bool well = false;
  try {
    well = ends_well(start_process(start), questions);
  } catch (const std::system_error& error) {
    throw Error(Stage::environment, "program.missing", "",
                fmt::format("{}: {} cannot be started, which {}: {}", package.asked_by, python(),
                            package.does, error.code().message()),
                fmt::format("install {}, or set MESHWRIGHT_PYTHON to a Python that will do",
                            package.needs));
  }
  Json result = json_in(whole_file(answer).value_or(""));
  if (!well || !result.is_object()) {
    throw_if_stopped();
    std::string said = readable(whole_file(log).value_or("what it said is above"));
    while (said.ends_with('\n')) said.pop_back();
    throw Error(Stage::environment, "program.failed", "",
                fmt::format("{}: {} failed, which {}: {}", package.asked_by, python(), package.does,
                            said.substr(said.rfind('\n') + 1)),
                "please report it with the command");
  }
  if (result.contains("problems")) throw error_in(result["problems"]);
  return result;
}

}  // namespace mw
