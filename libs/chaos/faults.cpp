// What each kind of fault does from outside of a run, and what the run must make of it.
#include "chaos/faults.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <fstream>

#include "meshwright/engine/text.h"
#include "meshwright/world.h"
#include "record/run_path.h"

namespace mw::chaos {
namespace {

namespace fs = std::filesystem;

constexpr double to_go_on = 150;    // seconds that a start and its first new step may take
constexpr double to_be_taken = 20;  // that a rank may take to meet its order
constexpr double to_be_withdrawn = 0.2;
constexpr double to_be_noticed = 20;
// How often the command may be started after one fault, with one restart of its own each time. The
// first start may be refused while the fault lasts.
constexpr int most_starts = 2;

// Flips a bit of a file, in place.
bool flip_bit_of(const fs::path& path, std::uint64_t draw) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  bool done = false;
  if (file >= 0 && ::fstat(file, &info) == 0 && info.st_size > 0) {
    const std::uint64_t bit = draw % (8 * static_cast<std::uint64_t>(info.st_size));
    const auto at = static_cast<off_t>(bit / 8);
    unsigned char byte = 0;
    done = ::pread(file, &byte, 1, at) == 1;
    byte ^= static_cast<unsigned char>(1U << (bit % 8));
    done = done && ::pwrite(file, &byte, 1, at) == 1;
  }
  if (file >= 0) ::close(file);
  return done;
}

std::string checkpoint_folder(std::int64_t step) {
  return fmt::format("step-{:08}", step);
}

// Whether the text has the words, with no digit behind them: "rank 1" is not in "rank 12".
bool has_words(const std::string& text, const std::string& words) {
  for (std::size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) {
    const std::size_t end = at + words.size();
    if (end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0) return true;
  }
  return false;
}

std::string first_line(const std::string& text) {
  return readable(text.substr(0, text.find('\n')));
}

// Whether the table of where each rank was, in what a run says of its end, has the rank in that
// call: "rank 2, all-reduce on dp for 'embedding' (gradients)".
bool in_table(const std::vector<Json>& lines, const std::string& where) {
  for (const Json& line : lines) {
    if (!line.contains("last_collectives")) continue;
    for (const Json& place : line["last_collectives"]) {
      if (!place.contains("in") || !place["in"].is_object()) continue;
      const Json& in = place["in"];
      const RankPlace::Call call{in.value("axis", ""), in.value("op", ""), in.value("label", ""),
                                 in.value("phase", "")};
      if (where == fmt::format("rank {}, {}", place.value("rank", -1), call.text())) return true;
    }
  }
  return false;
}

}  // namespace

double Faults::share() {
  return std::uniform_real_distribution<double>(0, 1)(random_);
}

std::int64_t Faults::draw(std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(0, most)(random_);
}

bool Faults::ready_for(const FaultKind& kind) const {
  return !run_.over() && run_.first_step() >= 0 && run_.next_step() < run_.steps() &&
         static_cast<int>(run_.checkpoint_steps().size()) >= kind.checkpoints;
}

Record Faults::make(const FaultKind& kind, std::int64_t number) {
  Record record;
  record.number = number;
  record.kind = kind.name;
  record.step = run_.next_step();
  begun_ = run_.begun();
  least_ = must_go_on_from(kind);
  since_ = monotonic_seconds();
  run_.mark();
  happen(kind, record);
  if (!record.met || end_is_wished()) return record;
  if (kind.fate == Fate::unseen) {
    judge_unseen(record);
    return record;
  }
  if (kind.fate == Fate::ends || run_.failing()) await_end(record);
  go_on(kind, record);
  judge(kind, record);
  return record;
}

// The newest checkpoint that the fault leaves whole; 0: none.
std::int64_t Faults::must_go_on_from(const FaultKind& kind) const {
  std::vector<std::int64_t> steps = run_.checkpoint_steps();
  std::erase_if(steps, [&](std::int64_t step) {
    const fs::path folder = run_.checkpoints() / checkpoint_folder(step);
    return folder == flipped_ && inode_of(folder) == flipped_inode_;
  });
  if (kind.way == Way::flips_checkpoint && !steps.empty()) steps.pop_back();
  return steps.empty() ? 0 : steps.back();
}

void Faults::happen(const FaultKind& kind, Record& record) {
  switch (kind.way) {
    case Way::throws_error:
    case Way::sleeps_once:
    case Way::sleeps_often:
    case Way::loses_call:
    case Way::makes_nan:
    case Way::flips_gradient:
      return order(kind, record);
    case Way::kills_rank:
    case Way::kills_launcher:
      return kill_member(kind, record);
    case Way::stops_one:
    case Way::stops_all:
      return stand_still(kind, record);
    case Way::turns_clock:
      return jump_clock(record);
    case Way::fills_disk:
      return fill_disk(record);
    case Way::closes_folder:
      return close_folder(record);
    case Way::flips_checkpoint:
    case Way::flips_run_file:
      return flip_in_file(kind, record);
    case Way::flips_data:
      return flip_in_data(record);
  }
}

void Faults::order(const FaultKind& kind, Record& record) {
  Order order;
  order.id = record.number;
  order.kind = &kind;
  order.rank = static_cast<int>(draw(ranks_ - 1));
  order.draw = random_();
  order.seconds = kind.longer ? run_.timeout() + 3 : run_.timeout() * (0.1 + 0.4 * share());
  give_order(run_.folder(), order);
  const auto taken = [&] {
    const auto last = taken_in(run_.folder());
    if (!last || last->id != order.id) return false;
    record.met = true;
    if (last->step >= 0) record.step = last->step;
    record.where = fmt::format("rank {}, {}", last->rank, last->call);
    return true;
  };
  run_.watch(at_this_load(to_be_taken), [&] { return taken() || run_.over(); });
  withdraw_order(run_.folder());
  // Its process may have read the order just before.
  if (!record.met) run_.watch(to_be_withdrawn, taken);
}

void Faults::kill_member(const FaultKind& kind, Record& record) {
  const Members members = run_.members();
  const auto& from = kind.way == Way::kills_rank ? members.ranks : members.launchers;
  if (from.empty()) return;
  const pid_t process =
      from[static_cast<std::size_t>(draw(static_cast<std::int64_t>(from.size()) - 1))];
  record.where = text_of_member(process);
  record.met = ::kill(process, SIGKILL) == 0;
}

// Stops processes by SIGSTOP, and lets them continue later.
void Faults::stand_still(const FaultKind& kind, Record& record) {
  std::vector<pid_t> members = run_.members().ranks;
  if (members.empty()) return;
  if (kind.way == Way::stops_one) {
    const auto chosen =
        static_cast<std::size_t>(draw(static_cast<std::int64_t>(members.size()) - 1));
    members = {members[chosen]};
  }
  const double seconds =
      kind.longer ? run_.timeout() + 1.5 : run_.timeout() * (0.1 + 0.5 * share());
  const Standstill still(members);
  record.met = still.any();
  record.where = members.size() == 1 ? text_of_member(members.front())
                                     : plural(static_cast<std::int64_t>(members.size()), "process");
  record.where += fmt::format(", {:.1f} s", seconds);
  run_.watch(seconds, [] { return end_is_wished(); });
}

void Faults::jump_clock(Record& record) {
  constexpr std::int64_t most = 400 * 86400;  // seconds
  const std::int64_t seconds = draw(2 * most) - most;
  const fs::path path = run_.folder() / clock_file;
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  record.met = file >= 0 && ::pwrite(file, &seconds, sizeof seconds, 0) == sizeof seconds;
  if (file >= 0) ::close(file);
  record.where = fmt::format("all processes, {:+.1f} days", static_cast<double>(seconds) / 86400);
}

void Faults::fill_disk(Record& record) {
  const std::vector<pid_t> members = run_.members().ranks;
  for (const pid_t each : members) limit_files(each, true);
  record.met = !members.empty();
  record.where = "all processes";
  await_notice(record);
  for (const pid_t each : members) limit_files(each, false);
}

// Root may write to any folder, so for root a file stands in the folder's place.
void Faults::close_folder(Record& record) {
  const fs::path folder = run_.checkpoints(), away = run_.folder() / "away";
  std::error_code error;
  const bool all_may = ::geteuid() == 0;
  if (all_may) {
    fs::rename(folder, away, error);
    if (!error) std::ofstream(folder) << "";
  } else {
    fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec, error);
  }
  record.met = !error;
  if (!record.met) return;
  record.where = all_may ? "a file stands in its place" : "mode 500";
  await_notice(record);
  if (all_may) {
    fs::remove_all(folder, error);
    fs::rename(away, folder, error);
  } else {
    fs::permissions(folder, fs::perms::owner_all, error);
  }
}

// The run is killed first, since it reads such files only when it starts.
void Faults::flip_in_file(const FaultKind& kind, Record& record) {
  for (const pid_t each : run_.members().all()) ::kill(each, SIGKILL);
  run_.clear_away(at_this_load(to_go_on));
  std::vector<fs::path> files;
  if (kind.way == Way::flips_run_file) {
    files = {run_.run_file()};
  } else if (const std::vector<std::int64_t> steps = run_.checkpoint_steps(); steps.size() >= 2) {
    flipped_ = run_.checkpoints() / checkpoint_folder(steps.back());
    flipped_inode_ = inode_of(flipped_);
    std::error_code error;
    for (fs::directory_iterator at(flipped_, error), end; !error && at != end; at.increment(error))
      files.push_back(at->path());
    std::sort(files.begin(), files.end());
  }
  if (!files.empty()) {
    const fs::path& path =
        files[static_cast<std::size_t>(draw(static_cast<std::int64_t>(files.size()) - 1))];
    record.met = flip_bit_of(path, random_());
    record.where = fs::relative(path, run_.folder()).string();
  }
  if (!record.met) run_.start();  // it was killed in vain
}

// A bit of a copy of the data, while the run reads it or while it is not running. The bit stays
// until the run has ended, or was refused; then it is as before, as if somebody had put the file
// back.
void Faults::flip_in_data(Record& record) {
  const bool reads = draw(1) == 1;
  const std::vector<fs::path>& files = run_.data();
  if (files.empty()) return;
  const fs::path& path =
      files[static_cast<std::size_t>(draw(static_cast<std::int64_t>(files.size()) - 1))];
  const std::uint64_t bit = random_();
  if (!reads) {
    for (const pid_t each : run_.members().all()) ::kill(each, SIGKILL);
    run_.clear_away(at_this_load(to_go_on));
    run_.mark();
  }
  record.met = flip_bit_of(path, bit);
  record.where = fmt::format("{}, {}", fs::relative(path, run_.folder()).string(),
                             reads ? "while it is read" : "before a start");
  if (!reads) run_.start();
  if (!record.met) return;
  await_end(record);
  record.said = run_.complaint();
  flip_bit_of(path, bit);
}

// Waits until the run says something of its files, or has ended.
void Faults::await_notice(Record& record) {
  run_.watch(at_this_load(to_be_noticed), [&] { return !alive() || !run_.complaint().empty(); });
  record.said = run_.complaint();
}

// Waits for the run's end, which must come soon after its ranks have waited for each other in vain.
void Faults::await_end(Record& record) {
  const double patience = at_this_load(2 * run_.timeout() + 60);
  if (run_.watch(patience, [&] { return !alive(); })) {
    record.ended = true;
    return;
  }
  if (end_is_wished()) return;
  record.wrong = fmt::format("the run has not ended in {:.0f} s", patience);
  for (const pid_t each : run_.members().all()) ::kill(each, SIGKILL);
}

// Starts the run again until it has done a step that it had not done before.
void Faults::go_on(const FaultKind& kind, Record& record) {
  std::int64_t most = run_.farthest();
  for (int starts = 0;;) {
    const double patience = at_this_load(to_go_on);
    const bool moves = run_.watch(patience, [&] { return run_.next_step() > most || run_.over(); });
    record.ended = record.ended || !alive();
    if (end_is_wished() || run_.done()) break;
    if (!moves) {
      record.wrong = fmt::format("no new step in {:.0f} s", patience);
      run_.stop();
    }
    if (!run_.over()) break;
    if (starts++ == most_starts) {
      record.wrong = fmt::format("it does not go on: {}", run_.complaint());
      break;
    }
    if (!run_.clear_away(at_this_load(to_go_on))) record.wrong = "a process was left";
    if (starts == 1 && record.said.empty()) record.said = run_.complaint();
    most = run_.farthest();
    run_.start();
    record.starts = starts;
  }
  record.seconds = monotonic_seconds() - since_;
  if (run_.begun() > begun_ && run_.first_step() >= 0) record.from = run_.first_step();
  if (record.ended && kind.fate == Fate::passes)
    record.wrong = "the run has ended: " + run_.complaint();
}

void Faults::judge(const FaultKind& kind, Record& record) const {
  if (record.said.empty()) record.said = run_.complaint();
  record.said = first_line(record.said);
  record.must_be_told = kind.fate != Fate::passes && !kind.may_be_silent;
  const bool names = kind.named != Named::nothing;
  std::string sign = record.where.substr(0, record.where.find(','));  // "rank 2", or a file
  if (kind.named == Named::file) sign = fs::path(sign).filename().string();
  const std::string all = record.said + run_.said();
  bool named = has_words(all, sign) || in_table(run_.lines(), record.where);
  // What the rank sends is called "recv 2 -> 3"; of data that differ before a start, the key.
  if (kind.way == Way::loses_call)
    named = named ||
            all.find(fmt::format(" {} -> ", sign.substr(sign.find(' ') + 1))) != std::string::npos;
  if (kind.way == Way::flips_data) named = named || all.find("data.content") != std::string::npos;
  record.told = !record.said.empty() && (!names || named);
  if (record.must_be_told && !record.told && record.wrong.empty())
    record.wrong = names ? fmt::format("the run does not name {}", sign) : "the run says nothing";
  if (record.from >= 0 && record.from < least_ && record.wrong.empty())
    record.wrong = fmt::format("it went on from step {}, and there was a checkpoint of step {}",
                               record.from, least_);
  if (run_.wrong() >= 0) record.wrong = fmt::format("another loss at step {}", run_.wrong());
}

// Looks for some steps at what the fault does to the losses. Then the run is stopped, as
// checkpoints that were written since may be wrong.
void Faults::judge_unseen(Record& record) {
  constexpr std::int64_t steps = 4;
  run_.watch(at_this_load(to_go_on), [&] {
    return !alive() || run_.wrong() >= 0 || run_.next_step() >= record.step + steps;
  });
  record.said = first_line(run_.complaint());
  record.told = !record.said.empty();
  record.parted = run_.wrong() >= 0;
  if (!record.told)
    record.said = record.parted ? fmt::format("other losses from step {}", run_.wrong())
                                : fmt::format("the same losses for {} steps", steps);
  run_.stop();
  record.seconds = monotonic_seconds() - since_;
}

}  // namespace mw::chaos
