// Starts the processes of a training that is disturbed and reads what they say through pipes, which
// no limit on the size of files reaches.
#include "chaos/disturbed_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "chaos/order.h"
#include "common/files.h"
#include "common/process.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "record/run_reader.h"

namespace mw::chaos {
namespace {

namespace fs = std::filesystem;

constexpr const char* pipe_names[] = {"stdout", "stderr", steps_pipe};
constexpr int bytes_of_pipe = 1 << 20;
constexpr double seconds_to_leave = 30;  // that processes have after the outermost one has ended

// Equal to the bit: 0 and -0 differ, and a NaN equals itself.
bool same(double one, double other) {
  return std::bit_cast<std::uint64_t>(one) == std::bit_cast<std::uint64_t>(other);
}

}  // namespace

int opened_pipe(const fs::path& path) {
  int pipe = -1;
  if (::mkfifo(path.c_str(), 0600) == 0)
    pipe = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);  // it never comes to its end
  if (pipe < 0) throw not_written(path, errno);
  // mpirun drops at its end what a full pipe does not take.
  ::fcntl(pipe, F_SETPIPE_SZ, bytes_of_pipe);
  return pipe;
}

std::string all_in(int pipe) {
  std::string text;
  char part[4096];
  for (ssize_t got = 0; (got = ::read(pipe, part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(got));
  return text;
}

fs::path clock_library() {
  return program_path().parent_path().parent_path() / "lib/libmeshwright_clock.so";
}

std::vector<double> losses_of(const Json& result) {
  std::vector<double> losses;
  for (const Json& loss : result.value("losses", Json::array()))
    losses.push_back(loss.is_number() ? loss.get<double>() : std::nan(""));
  return losses;
}

double monotonic_seconds() {
  return seconds_now();
}

bool end_is_wished() {
  return stop_requested();
}

double at_this_load(double seconds) {
  // Programs that would run on the whole machine, on average over the last minute.
  double wish = 0;
  const auto cores = static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  return ::getloadavg(&wish, 1) == 1 ? seconds * std::max(1.0, wish / cores) : seconds;
}

std::vector<std::string> Start::words_of_run() const {
  std::vector<std::string> all = {"run", script, "--json"};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) all.insert(all.end(), {option, value});
  };
  for (const std::string& setting : settings) add("--set", setting);
  for (const std::string& folder : plugin_path) add("--plugin-path", folder);
  if (processes > 0) add("--processes", std::to_string(processes));
  add("--communicator", communicator);
  add("--set", fmt::format("timeout={}", format_number(timeout)));
  return all;
}

DisturbedRun::DisturbedRun(Start start, fs::path folder, std::vector<double> losses)
    : start_(std::move(start)), folder_(std::move(folder)), losses_(std::move(losses)) {
  fs::create_directories(folder_ / "tmp");
  for (int p = 0; p < 3; ++p) pipes_[p] = opened_pipe(folder_ / pipe_names[p]);
  if (const int failed = replace_whole(folder_ / clock_file, std::string(8, '\0')); failed != 0)
    throw not_written(folder_ / clock_file, failed);
}

DisturbedRun::~DisturbedRun() {
  stop();
  for (const int pipe : pipes_)
    if (pipe >= 0) ::close(pipe);
}

void DisturbedRun::begin_anew() {
  clear_away(at_this_load(seconds_to_leave));
  std::error_code ignored;
  fs::remove_all(checkpoints(), ignored);
  fs::remove(run_file(), ignored);
  next_ = farthest_ = 0;
  wrong_ = -1;
  start();
}

void DisturbedRun::start() {
  clear_away(at_this_load(seconds_to_leave));
  // What was killed may have left half a line, which is not the beginning of the next one's result.
  if (!lines_.empty() && lines_.back() != '\n') lines_ += '\n';
  std::vector<std::string> words = start_.words_of_run();
  const auto set = [&](const std::string& setting) {
    words.insert(words.end(), {"--set", setting});
  };
  set(fmt::format("checkpoint={{path={},every={},keep=4}}", quote(checkpoints().string()),
                  start_.checkpoints));
  set(fmt::format("log={}", quote(run_file().string())));
  set("resume=true");
  words.insert(words.end(), {"--max-restarts", "1", "--chaos", folder_.string()});
  if (!start_.launcher.empty()) words.insert(words.end(), {"--launcher", start_.launcher});
  if (!start_.words.empty()) words.emplace_back("--");
  words.insert(words.end(), start_.words.begin(), start_.words.end());
  ProcessStart process;
  process.command = {"/bin/sh", "-c", "exec \"$@\" 2>>\"$0\"", (folder_ / "stderr").string(),
                     program_path().string()};
  process.command.insert(process.command.end(), words.begin(), words.end());
  process.output = (folder_ / "stdout").string();
  process.own_group = true;
  process.variables = {"TMPDIR=" + (folder_ / "tmp").string(),
                       fmt::format("{}={}", clock_variable, (folder_ / clock_file).string())};
  if (fs::exists(clock_library())) {
    const char* const before = std::getenv("LD_PRELOAD");
    process.variables.push_back(fmt::format("LD_PRELOAD={}{}{}", clock_library().string(),
                                            before == nullptr ? "" : ":",
                                            before == nullptr ? "" : before));
  }
  first_ = -1;
  next_ = 0;
  code_ = 0;
  process_ = start_process(process);
  running_ = true;
}

void DisturbedRun::look(int milliseconds) {
  pollfd waits[3];
  for (int p = 0; p < 3; ++p) waits[p] = {pipes_[p], POLLIN, 0};
  ::poll(waits, 3, milliseconds);
  int status = 0;
  // Asked before the pipes are read: what it said before its end is then there.
  const bool ended = running_ && child_ended(process_, status);
  lines_ += all_in(pipes_[0]);
  said_ += all_in(pipes_[1]);
  unread_ += all_in(pipes_[2]);
  for (std::size_t end = 0; (end = unread_.find('\n')) != std::string::npos;) {
    take_steps(unread_.substr(0, end));
    unread_.erase(0, end + 1);
  }
  if (!ended) return;
  running_ = false;
  code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void DisturbedRun::take_steps(const std::string& line) {
  if (line.starts_with("start")) {
    ++begun_;
    first_ = -1;
    next_ = 0;
    return;
  }
  char* rest = nullptr;
  const std::int64_t step = std::strtoll(line.c_str(), &rest, 10);
  const double loss = std::strtod(rest, nullptr);
  if (step < 0 || step >= steps()) return;
  if (first_ < 0) first_ = step;
  if (!std::isfinite(loss)) return;  // it is left out, and computed again
  next_ = step + 1;
  farthest_ = std::max(farthest_, next_);
  if (wrong_ < 0 && !same(loss, losses_[static_cast<std::size_t>(step)])) wrong_ = step;
}

void DisturbedRun::forgive() {
  wrong_ = -1;
}

void DisturbedRun::mark() {
  look(0);
  said_.clear();
  lines_.clear();
}

std::vector<Json> DisturbedRun::lines() const {
  std::vector<Json> found;
  std::istringstream stream(lines_);
  for (std::string line; std::getline(stream, line);) {
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) found.push_back(std::move(json));
  }
  return found;
}

std::string DisturbedRun::complaint() const {
  for (const Json& line : lines()) {
    if (line.value("kind", "") == "error") return line.value("message", "");
    if (line.value("kind", "") == "train" && line.value("status", "") == "failed")
      return line.value("reason", "");
  }
  std::istringstream stream(said_);
  for (std::string line; std::getline(stream, line);) {
    for (const char* sign : {"error: ", "restart 1 of", "not started again", "is broken",
                             "no checkpoint of step", "cannot be written", "cannot be read"}) {
      if (line.find(sign) != std::string::npos) return line;
    }
  }
  return "";
}

bool DisturbedRun::failing() const {
  const std::vector<Json> all = lines();
  return std::any_of(all.begin(), all.end(), [](const Json& line) {
    return line.value("kind", "") == "error" || line.value("status", "") == "failed";
  });
}

std::vector<std::int64_t> DisturbedRun::checkpoint_steps() const {
  constexpr std::string_view prefix = "step-";
  std::vector<std::int64_t> found;
  std::error_code error;
  for (fs::directory_iterator at(checkpoints(), error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename();
    if (name.starts_with(prefix))
      found.push_back(std::strtoll(name.c_str() + prefix.size(), nullptr, 10));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string DisturbedRun::wrong_in_run_file() const {
  if (!fs::exists(run_file())) return "";
  try {
    RunReader reader(run_file());
    std::int64_t expected = 0;
    for (const StepRow& row : reader.steps()) {
      if (row.step != expected) return fmt::format("the run file lacks step {}", expected);
      if (row.step < steps() && std::isfinite(row.loss) &&
          !same(row.loss, losses_[static_cast<std::size_t>(row.step)]))
        return fmt::format("the run file has another loss at step {}", row.step);
      ++expected;
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string DisturbedRun::wrong_in_whole_run_file() const {
  if (!fs::exists(run_file())) return "the run is done, and there is no run file";
  if (const std::string wrong = wrong_in_run_file(); !wrong.empty()) return wrong;
  try {
    RunReader reader(run_file());
    const auto there = static_cast<std::int64_t>(reader.steps().size());
    if (there != steps())
      return fmt::format("the run is done, and its file has {} of {}", there,
                         plural(steps(), "step"));
    if (const std::string status = reader.head().status; status != "done")
      return fmt::format("the run is done, and its file says \"{}\"", status);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string DisturbedRun::wrong_in_result() const {
  for (const Json& line : lines()) {
    if (line.value("kind", "") != "train" || line.value("status", "") != "done") continue;
    const std::vector<double> losses = losses_of(line);
    if (losses.size() != losses_.size())
      return fmt::format("its result has {}",
                         plural(static_cast<std::int64_t>(losses.size()), "loss"));
    for (std::size_t s = 0; s < losses.size(); ++s)
      if (!same(losses[s], losses_[s]))
        return fmt::format("its result has another loss at step {}", s);
    return "";
  }
  return fmt::format("it has ended without a result; it said: {}",
                     lines_.empty() ? said_ : lines_.substr(0, 200));
}

bool DisturbedRun::clear_away(double seconds) {
  const auto gone = [this] { return over() && members().none(); };
  const bool alone = gone() || watch(seconds, gone);
  if (!alone) {
    for (const pid_t process : members().all()) ::kill(process, SIGKILL);
    watch(seconds, gone);
  }
  look(0);  // else the next training would be taken to have said what is left in the pipes
  return alone;
}

bool DisturbedRun::stop() {
  if (running_) ::kill(process_, SIGTERM);
  const double until = monotonic_seconds() + at_this_load(seconds_to_leave);
  while (!(over() && members().none()) && monotonic_seconds() < until) look(50);
  const Members left = members();
  for (const pid_t process : left.all()) ::kill(process, SIGKILL);
  while (running_) look(50);
  return left.none();
}

}  // namespace mw::chaos
