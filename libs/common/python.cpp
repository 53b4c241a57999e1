// Starts a package of Python with two files: what it is to do, and where it is to write what came
// of it.
#include "common/python.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>

#include "common/files.h"
#include "common/process.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

std::string python() {
  const char* const given = std::getenv("MESHWRIGHT_PYTHON");
  return given == nullptr || *given == '\0' ? "python3" : given;
}

Error error_in(const Json& answer) {
  Stage stage = Stage::options;
  for (const Stage one : {Stage::script, Stage::run, Stage::environment})
    if (answer["stage"] == name_of(one)) stage = one;
  return {stage, answer["code"], "", answer["message"], answer["hint"]};
}

// Waits for its end; true if that is a good one.
bool ends_well(pid_t process) {
  constexpr std::chrono::milliseconds between_looks{10};
  int status = 0;
  for (bool asked = false; !child_ended(process, status);) {
    if (stop_requested() && !asked) asked = ::kill(process, SIGTERM) == 0;
    std::this_thread::sleep_for(between_looks);
  }
  return status == 0;
}

}  // namespace

Json answer_of(const PythonPackage& package, const Json& request) {
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
  write_output(package.asked_by, asked,
               request.dump(-1, ' ', false, Json::error_handler_t::replace));
  ProcessStart start;
  start.command = {python(), "-B", program.string(), asked, answer};
  start.output = package.speaks ? "" : log;
  start.own_group = package.speaks;  // it hears of Ctrl-C once, from here
  bool well = false;
  try {
    well = ends_well(start_process(start));
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
  if (result.contains("error")) throw error_in(result["error"]);
  return result;
}

}  // namespace mw
