// Starts two processes over a communicator, as torchrun or its own launcher would, and reads what
// they say.
#include "app/kit/kit_checks.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>
#include <thread>

#include "app/sweep/child.h"
#include "common/files.h"
#include "common/process.h"
#include "lua/script.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/json.h"
#include "transport/launched.h"

namespace mw {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds patience{300};
// The longest time from the end of the first process to that of the others, which end by
// themselves, in no order.
constexpr std::chrono::seconds until_others_end{30};
constexpr std::chrono::milliseconds look_every{20};
constexpr const char* endless = "endless";  // the word for a training that is to be killed

// A port of this machine that nobody has at the moment.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool found =
      socket >= 0 && ::bind(socket, any, length) == 0 && ::getsockname(socket, any, &length) == 0;
  const int port = ntohs(address.sin_port);
  if (socket >= 0) ::close(socket);
  if (found) return port;
  throw Error(Stage::environment, "launch.address", "", "this machine has no free port",
              "the network of this machine, 127.0.0.1");
}

// The processes of one run of the kit's communicator.lua, started here one by one, or by a
// launcher. A launcher is then the only process that is waited for, and ends as they do.
class Launched {
 public:
  Launched(const TestedCommunicator& communicator, const std::string& word)
      : Launched() {  // so that ~Launched() ends those that were started, if the next cannot be
    launcher_ = communicator.launcher;
    ProcessStart child;
    child.command = {"run", (lua_library().parent_path() / "communicator.lua").string(), "--json",
                     "--communicator", communicator.name};
    for (const std::string& folder : communicator.plugin_path) {
      child.command.emplace_back("--plugin-path");
      child.command.push_back(fs::absolute(folder).string());
    }
    if (!launcher_.empty()) {
      const auto words = {"--max-restarts", "0", "--launcher", launcher_.c_str()};
      child.command.insert(child.command.end(), words.begin(), words.end());
    }
    // A launcher passes output on in pieces, and results and text go to one file. Without --quiet,
    // text might come between the pieces of a result.
    if (word != endless) child.command.emplace_back("--quiet");
    child.command.insert(child.command.end(), {"--", word});
    // Hides a launcher around this process from the processes that are started.
    for (const char* other : {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE"})
      child.variables.push_back(std::string(other) + "=");
    const std::string port = std::to_string(free_port());
    for (int p = 0; p < (launcher_.empty() ? kit_processes : 1); ++p) {
      ProcessStart one = child;
      one.output = output(p).string();
      if (launcher_.empty()) {
        for (const std::string& variable :
             {fmt::format("WORLD_SIZE={}", kit_processes), fmt::format("RANK={}", p),
              fmt::format("LOCAL_RANK={}", p), std::string("MASTER_ADDR=127.0.0.1"),
              "MASTER_PORT=" + port, std::string("TORCHELASTIC_USE_AGENT_STORE=False")})
          one.variables.push_back(variable);
      }
      started_.push_back({start_child(one)});
    }
  }
  ~Launched() {
    for (std::size_t p = 0; p < started_.size(); ++p) kill(p);
    for (One& one : started_) {
      if (!one.over) ::waitpid(one.process, &one.status, 0);
    }
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  void kill(std::size_t p) {
    if (!started_[p].over) ::kill(-started_[p].process, SIGKILL);
  }
  // Kills the last process. Returns false if it is not found.
  bool kill_last() {
    if (launcher_.empty()) {
      kill(kit_processes - 1);
      return true;
    }
    std::vector<pid_t> below = {started_[0].process};
    for (std::size_t i = 0; i < below.size(); ++i) {
      for (const pid_t child : children_of(below[i])) below.push_back(child);
      const auto variable = [&](const char* name) -> const char* {
        value_ = variable_of(below[i], name);
        return value_.empty() ? nullptr : value_.c_str();
      };
      if (i == 0 || !runs_this_program(below[i])) continue;
      const auto launch = launched(variable);
      if (launch && launch->process == kit_processes - 1) return ::kill(below[i], SIGKILL) == 0;
    }
    return false;
  }
  // Waits until the condition holds. Returns false if it does not after `patience`, or when the
  // first process has ended.
  bool wait_until(const std::function<bool()>& holds) {
    const auto deadline = Clock::now() + patience;
    for (;;) {
      const bool ended = over(0);
      if (holds()) return true;
      if (ended || Clock::now() > deadline) return false;
      throw_if_stopped();
      std::this_thread::sleep_for(look_every);
    }
  }
  bool over(std::size_t p) {
    One& one = started_[p];
    if (!one.over) one.over = child_ended(one.process, one.status);
    return one.over;
  }
  bool all_over() {
    bool all = true;
    for (std::size_t p = 0; p < started_.size(); ++p) all = over(p) && all;
    return all;
  }
  // The exit code of a process that has ended by itself; else -1.
  int exit_code(std::size_t p = 0) const {
    const One& one = started_[p];
    return one.over && WIFEXITED(one.status) ? WEXITSTATUS(one.status) : -1;
  }
  // A launcher's exit code may differ from that of its processes.
  bool has_failed() const {
    return launcher_.empty() ? exit_code() == exit_code_of(Stage::run) : exit_code() > 0;
  }
  // Waits for the first process, then for the others a little longer. Whether all ended with 0.
  bool all_end_well() {
    wait_until([&] { return over(0); });
    const auto deadline = Clock::now() + until_others_end;
    while (exit_code() == 0 && !all_over() && Clock::now() < deadline) {
      throw_if_stopped();
      std::this_thread::sleep_for(look_every);
    }
    for (std::size_t p = 0; p < started_.size(); ++p) {
      if (exit_code(p) != 0) return false;
    }
    return true;
  }
  std::string said(int p) const { return whole_file(output(p)).value_or(""); }
  std::vector<Json> results() const {
    std::vector<Json> lines;
    std::istringstream text(said(0));
    for (std::string line; std::getline(text, line);) {
      Json read = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (read.is_object()) lines.push_back(std::move(read));
    }
    return lines;
  }
  // Why the run failed: the error that the first process printed, or how the first process that did
  // not end well ended.
  std::string end() const {
    for (const Json& line : results()) {
      if (line.value("kind", "") == "error") return line.value("message", "");
    }
    std::size_t bad = 0;
    while (bad + 1 < started_.size() && exit_code(bad) == 0) ++bad;
    const std::string which = !launcher_.empty() ? "what started the processes"
                              : bad == 0         ? "the first process"
                                                 : fmt::format("process {}", bad);
    if (!started_[bad].over) return which + " does not come to an end";
    const fs::path said = output(static_cast<int>(bad));
    return which + " " + reason_of_end(started_[bad].status, said.string(), false);
  }

 private:
  Launched() = default;
  struct One {
    pid_t process = 0;
    bool over = false;
    int status = 0;
  };
  fs::path output(int p) const { return folder_.path() / std::to_string(p); }

  WorkFolder folder_{"meshwright-"};
  std::string launcher_;
  std::string value_;  // value of the environment variable that kill_last() read last
  std::vector<One> started_;
};

constexpr const char* over_it = "over it";
constexpr const char* where_to_look =
    "the contract is meshwright/carrier.h, for what sends messages meshwright/transport.h";

// The first difference between measured and predicted bytes and lasting memory of a training, as
// text; empty: none.
std::string unlike(const Json& result) {
  const auto bytes_of = [](const Json& list) {
    Json bytes = Json::object();
    for (const Json& one : list) {
      const std::string key =
          fmt::format("{} {}, {}", one.at("axis").get<std::string>(),
                      one.at("op").get<std::string>(), one.at("phase").get<std::string>());
      bytes[key] = {one.at("calls"), one.at("bytes")};
    }
    return bytes;
  };
  const Json measured = bytes_of(result.at("communication"));
  const Json predicted = bytes_of(result.at("predicted").at("communication"));
  for (const auto& [key, value] : predicted.items()) {
    if (measured.value(key, Json()) != value)
      return fmt::format("{}: {} calls and bytes measured, {} predicted", key,
                         measured.value(key, Json()).dump(), value.dump());
  }
  if (measured.size() != predicted.size()) return "more is sent than was predicted";
  for (const char* kept : {"parameters", "gradients", "optimizer"}) {
    const Json& forecast = result.at("predicted").at("memory").at(0).at(kept);
    if (result.at("memory").at(kept) != forecast)
      return fmt::format("{}: {} bytes measured, {} predicted", kept,
                         result.at("memory").at(kept).dump(), forecast.dump());
  }
  return "";
}

void check_runs(Launched& run, KitReport& report) {
  const bool well = run.all_end_well();
  int trained = 0;
  for (const Json& line : run.results()) {
    const std::string kind = line.value("kind", "");
    if (kind == "verify") {
      const std::string check =
          fmt::format("equals one rank {}, {}", over_it, line.value("name", ""));
      const Json& errors = line.at("max_relative_error");
      if (line.value("verdict", "") == "equal") {
        report.ok(check, fmt::format("gradients {:.1e}, parameters {:.1e} apart",
                                     errors.at("gradients").get<double>(),
                                     errors.at("parameters").get<double>()));
      } else {
        report.failed(check, line.value("verdict", "") + ": " + line.at("divergence").dump(),
                      where_to_look);
      }
    } else if (kind == "train") {
      ++trained;
      const std::string differs = unlike(line);
      const std::string check = fmt::format("bytes and memory as predicted, {}", over_it);
      if (differs.empty()) {
        report.ok(check);
      } else {
        report.failed(check, differs, where_to_look);
      }
    }
  }
  const std::string check = "all processes end well";
  if (trained > 0 && well) {
    report.ok(check);
  } else {
    report.failed(check, run.end(), where_to_look);
  }
}

// Whether the message names the process, as "process 1" or as "Process 1".
bool names(const std::string& message, int process) {
  return message.find(fmt::format("rocess {}", process)) != std::string::npos;
}

void check_killed(Launched& run, KitReport& report) {
  const std::string check = "a process that is killed is named";
  if (!run.wait_until([&] { return run.said(0).find("\nstep ") != std::string::npos; })) {
    report.failed(check, "no training began: " + run.end(), where_to_look);
    return;
  }
  if (!run.kill_last()) {
    report.failed(check, fmt::format("no process {} was found to be killed", kit_processes - 1),
                  "its launcher must start processes of this machine as its own children");
    return;
  }
  const bool ended = run.wait_until([&] { return run.over(0); });
  for (const Json& line : run.results()) {
    const std::string message = line.value("message", "");
    if (ended && line.value("code", "") == "process.lost" && run.has_failed() &&
        names(message, kit_processes - 1)) {
      report.ok(check, message);
      return;
    }
  }
  report.failed(check, ended ? run.end() : "the other one does not end",
                "what waits for its ranks must fail, and take() must throw process.lost");
}

}  // namespace

void check_communicator(const TestedCommunicator& communicator, KitReport& report) {
  {
    Launched run(communicator, "all");
    check_runs(run, report);
  }
  Launched run(communicator, endless);
  check_killed(run, report);
}

}  // namespace mw
