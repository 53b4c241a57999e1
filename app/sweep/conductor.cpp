// Starts as many cells at a time as memory and cores take, ends those that take too long, and turns
// every end into a row.
#include "app/sweep/conductor.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <thread>

#include "app/progress.h"
#include "app/sweep/summary.h"
#include "common/run_timing.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "predict/device.h"

namespace mw {
namespace {

// What a process takes beside its ranks' tensors: the program, libtorch, a page of code for each
// thread. Measured: about 150 MB resident.
constexpr std::int64_t bytes_of_a_process = 256 << 20;
constexpr double grace = 5;  // seconds between SIGTERM and SIGKILL
constexpr auto between_looks = std::chrono::milliseconds(10);

}  // namespace

Json bare_row(const SweepTable& sweep, const Cell& cell, const Planned& planned,
              const CellState& state) {
  Json row = {{"kind", "cell"},
              {"sweep", sweep.name},
              {"name", cell.name},
              {"status", state.status},
              {"reason", state.reason.empty() ? Json() : Json(state.reason)},
              {"reused", false},
              {"values", cell.texts()},
              {"hash", planned.hash.empty() ? Json() : Json(planned.hash)},
              {"hash_without_seed",
               planned.hash_without_seed.empty() ? Json() : Json(planned.hash_without_seed)},
              {"folder", nullptr}};
  if (planned.ranks > 0) row["ranks"] = planned.ranks;
  if (!planned.hint.empty()) row["hint"] = planned.hint;
  return row;
}

Json row_of_result(const SweepTable& sweep, const Cell& cell, const Json& result, bool reused) {
  Json row = {{"kind", "cell"},        {"sweep", sweep.name}, {"name", cell.name},
              {"status", "failed"},    {"reason", nullptr},   {"reused", reused},
              {"values", cell.texts()}};
  for (const auto& [key, value] : result.items()) {
    const bool own =
        key == "kind" || key == "sweep" || key == "name" || key == "reused" || key == "values";
    if (!own) row[key] = value;
  }
  return row;
}

CellState state_of(const Json& row) {
  const auto reason = row.find("reason"), seconds = row.find("seconds");
  return {row.value("status", "failed"),
          reason != row.end() && reason->is_string() ? reason->get<std::string>() : "",
          seconds != row.end() && seconds->is_number() ? seconds->get<double>() : 0};
}

Conductor::Conductor(const Conduct& conduct, std::vector<Json>& rows,
                     std::vector<CellState>& states, std::vector<bool>& mine)
    : conduct_(conduct),
      rows_(rows),
      states_(states),
      mine_(mine),
      rewrites_(!conduct.go.quiet && style_for(stderr).rewrite) {}

Conductor::~Conductor() {
  for (const Running& running : running_) {
    ::kill(-running.process, SIGKILL);
    ::waitpid(running.process, nullptr, 0);
  }
  if (line_open_) std::fputs("\r\033[K", stderr);
}

void Conductor::run(std::vector<std::size_t> cells, bool wait) {
  const OnStopSay words(
      "stopping: cells under way are ended, and run again by the same command; once more stops at "
      "once");
  waiting_ = std::move(cells);
  all_ = waiting_.size();
  std::reverse(waiting_.begin(), waiting_.end());  // the next cell is at the end
  while (!waiting_.empty() || !running_.empty() || (wait && !elsewhere_.empty())) {
    if (stop_requested()) {
      end_all();
      conduct_.changed();
      const std::string by = stop_signal();
      throw Stopped(fmt::format("interrupted{}: {} of {} cells are done",
                                by.empty() ? "" : " by " + by, done_, all_),
                    "the same command goes on from here");
    }
    if (waiting_.empty() && seconds_now() - looked_elsewhere_ > 0.5) {
      looked_elsewhere_ = seconds_now();
      waiting_.swap(elsewhere_);
    }
    while (!waiting_.empty() && admits(waiting_.back())) {
      const std::size_t cell = waiting_.back();
      waiting_.pop_back();
      if (!start(cell)) elsewhere_.push_back(cell);
    }
    for (std::size_t i = 0; i < running_.size();) {
      int status = 0;
      if (child_ended(running_[i].process, status)) {
        Running ended = std::move(running_[i]);
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        take_end(ended, status);
      } else {
        look(running_[i++]);
      }
    }
    show();
    std::this_thread::sleep_for(between_looks);
  }
  show();
}

bool Conductor::admits(std::size_t cell) const {
  if (running_.empty()) return true;
  const auto& planned = conduct_.planned;
  std::int64_t memory = planned[cell].memory + bytes_of_a_process;
  int cores = planned[cell].cores;
  for (const Running& running : running_) {
    memory += planned[running.cell].memory + bytes_of_a_process;
    cores += planned[running.cell].cores;
  }
  if (memory > this_device().memory) return false;
  if (conduct_.go.workers > 0) return static_cast<int>(running_.size()) < conduct_.go.workers;
  return cores <= core_count();
}

bool Conductor::start(std::size_t cell) {
  const std::string& hash = conduct_.planned[cell].hash;
  FileLock lock = sweep_lock(conduct_.folder.lock_of(hash));
  if (!lock.held()) {
    states_[cell].status = "running";
    if (!lock.unsure().empty() && unsure_.insert(lock.unsure()).second)
      conduct_.say(fmt::format(
          "{}: {} has this cell, and nobody here can say whether it still runs; if it has ended, "
          "remove {}",
          conduct_.cells[cell].name, lock.holder(), lock.unsure().string()));
    rows_[cell] =
        bare_row(conduct_.sweep, conduct_.cells[cell], conduct_.planned[cell], states_[cell]);
    return false;
  }
  mine_[cell] = true;
  // Another process may have run the cell since this one looked for results.
  const auto result = conduct_.folder.result(conduct_.cells[cell], hash);
  const auto earlier = earlier_.find(cell);
  if (result && earlier == earlier_.end() && *result != conduct_.before[cell]) {
    rows_[cell] = row_of_result(conduct_.sweep, conduct_.cells[cell], *result, true);
    states_[cell] = state_of(rows_[cell]);
    ++done_;
    conduct_.ended(cell);
    return true;
  }
  const std::string folder = conduct_.folder.fresh(
      conduct_.cells[cell], hash, earlier == earlier_.end() ? nullptr : &earlier->second.folder);
  ProcessStart options;
  options.command = conduct_.prepare(cell, folder);
  options.output = folder + "/output.txt";
  options.memory = conduct_.go.memory;
  options.lock = lock.descriptor();
  Running running;
  running.cell = cell;
  running.kills = kills_for_memory();
  running.began = seconds_now();
  running.turn = ++turns_;
  running.process = start_child(options);
  running.lock = std::move(lock);
  running_.push_back(std::move(running));
  for (Running& one : running_)
    one.beside = std::max(one.beside, static_cast<int>(running_.size()));
  states_[cell] = {"running", "", 0};
  conduct_.changed();
  return true;
}

void Conductor::look(Running& running) {
  const double now = seconds_now();
  if (running.asked_to_end > 0) {
    if (now > running.asked_to_end + grace) ::kill(-running.process, SIGKILL);
  } else if (conduct_.go.time > 0 && now > running.began + conduct_.go.time) {
    running.too_long = true;
    running.asked_to_end = now;
    ::kill(-running.process, SIGTERM);
  }
}

// The result that the cell's process left, or a failed one with the reason why it left none.
Json Conductor::result_of(const Running& running, int status, bool& from_outside) const {
  const std::size_t cell = running.cell;
  const std::string folder = conduct_.folder.of(conduct_.cells[cell], conduct_.planned[cell].hash);
  auto result = conduct_.folder.result(conduct_.cells[cell], conduct_.planned[cell].hash);
  from_outside = !result && !running.too_long && WIFEXITED(status) && WEXITSTATUS(status) == 130;
  if (running.too_long && (!result || !result->value("trained", false))) {
    const std::string end = reason_of_end(status, folder + "/output.txt", false);
    const std::size_t words = end.find("; its last words");
    result = Json{
        {"status", "failed"},
        {"reason", fmt::format("over its time limit: not done after {:.4g} s{}", conduct_.go.time,
                               words == std::string::npos ? "" : end.substr(words))}};
  } else if (!result) {
    const std::int64_t kills = kills_for_memory();
    result =
        Json{{"status", "failed"},
             {"reason", from_outside ? "interrupted from outside; the next call runs it again"
                                     : reason_of_end(status, folder + "/output.txt",
                                                     kills > running.kills && running.kills >= 0)}};
  }
  (*result)["hash"] = conduct_.planned[cell].hash;
  (*result)["folder"] = folder;
  (*result)["seconds"] = seconds_now() - running.began;
  (*result)["beside"] = running.beside - 1;
  (*result)["turn"] = running.turn;
  return *result;
}

bool Conductor::runs_again(const Running& running, const Json& result) const {
  const auto known = earlier_.find(running.cell);
  const int reruns = known == earlier_.end() ? 0 : known->second.reruns;
  // Cells that run side by side disturb each other the next time too.
  return read_timing(result).disturbed && result.value("trained", false) && running.beside <= 1 &&
         reruns < conduct_.go.reruns && conduct_.cells.size() > 1;
}

void Conductor::keep_quietest(std::size_t cell, Json& result) {
  const auto known = earlier_.find(cell);
  if (known == earlier_.end() || known->second.folder.empty()) return;
  const RunTiming before = read_timing(known->second.result), now = read_timing(result);
  const auto share = [](const RunTiming& timing) {
    return timing.steps > 0
               ? static_cast<double>(timing.disturbed_steps) / static_cast<double>(timing.steps)
               : 1;
  };
  const bool better =
      result.value("trained", false) &&
      std::pair(share(now), now.use.others) < std::pair(share(before), before.use.others);
  if (!better) {
    conduct_.folder.put_back(conduct_.cells[cell], conduct_.planned[cell].hash,
                             known->second.folder);
    result = known->second.result;
  }
  known->second.folder.clear();
  result["reruns"] = known->second.reruns;
}

void Conductor::take_end(Running& running, int status) {
  const std::size_t cell = running.cell;
  const std::string& name = conduct_.cells[cell].name;
  const double seconds = seconds_now() - running.began;
  bool from_outside = false;
  Json result = result_of(running, status, from_outside);
  measured_ += seconds;
  predicted_ += conduct_.planned[cell].whole_seconds();
  ++done_;
  const bool again = !from_outside && runs_again(running, result);
  const std::string why = disturbance_text(read_timing(result));
  keep_quietest(cell, result);
  const std::string folder = conduct_.folder.of(conduct_.cells[cell], conduct_.planned[cell].hash);
  const Json row = row_of_result(conduct_.sweep, conduct_.cells[cell], result, false);
  if (!from_outside) replace_file(folder + "/result.json", json_text(row) + "\n");
  std::string word = "again", said;
  if (again) {
    said = why + "; it runs again when the others are done";
    earlier_[cell] = {result, earlier_[cell].reruns + 1, ""};
    waiting_.insert(waiting_.begin(), cell);  // after all others
    ++all_;
    states_[cell] = CellState{};
  } else {
    rows_[cell] = row;
    states_[cell] = state_of(row);
    conduct_.ended(cell);
    if (states_[cell].status == "done") conduct_.folder.forget_earlier(conduct_.planned[cell].hash);
    word = row.value("status", "failed");
    if (word == "failed") ++failed_;
    said = short_result(row);
  }
  conduct_.changed();
  if (conduct_.go.quiet) return;
  if (line_open_) std::fputs("\r\033[K", stderr);
  line_open_ = false;
  conduct_.say(fmt::format("[{}/{}] {:7} {:>6}  {}  {}", done_, all_, word,
                           fmt::format("{:.1f} s", seconds), name, said));
}

// Ends all running cells, which are then still to be run.
void Conductor::end_all() {
  for (const Running& running : running_) ::kill(-running.process, SIGTERM);
  const double began = seconds_now();
  for (const Running& running : running_) {
    int status = 0;
    while (!child_ended(running.process, status)) {
      if (seconds_now() > began + grace) ::kill(-running.process, SIGKILL);
      std::this_thread::sleep_for(between_looks);
    }
    states_[running.cell] = CellState{};
  }
  running_.clear();
}

double Conductor::seconds_left() const {
  if (predicted_ <= 0) return -1;
  double left = 0;
  for (const std::size_t cell : waiting_) left += conduct_.planned[cell].whole_seconds();
  for (const Running& running : running_) {
    const double whole = conduct_.planned[running.cell].whole_seconds();
    left += std::max(0.0, whole - (seconds_now() - running.began) * predicted_ / measured_);
  }
  const double at_a_time = std::max<double>(1, static_cast<double>(running_.size()));
  return left * measured_ / predicted_ / at_a_time;
}

void Conductor::show() {
  if (!rewrites_ || seconds_now() < shown_at_ + 0.25) return;
  shown_at_ = seconds_now();
  if (running_.empty()) return;
  std::string line = fmt::format("{}/{} cells", done_, all_);
  if (failed_ > 0) line += fmt::format(", {} failed", failed_);
  line += fmt::format(", running {}", conduct_.cells[running_.front().cell].name);
  if (running_.size() > 1) line += fmt::format(" and {} more", running_.size() - 1);
  if (const double left = seconds_left(); left >= 0)
    line += fmt::format(", {} left", format_duration(left));
  std::fprintf(stderr, "\r\033[K%.100s", readable_line(line).c_str());
  std::fflush(stderr);
  line_open_ = true;
}

}  // namespace mw
