// The order of events: the training without faults, then rounds of it with one fault after the
// other, and at the end a look at what is left.
#include "chaos/chaos.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "chaos/faults.h"
#include "common/files.h"
#include "common/process.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/options.h"

namespace mw::chaos {
namespace {

namespace fs = std::filesystem;

constexpr double to_finish = 60;  // seconds that the last round has to come to its end
constexpr double to_begin = 120;  // seconds that a start has to come to its first checkpoint
constexpr std::chrono::milliseconds between_asks{20};
constexpr int most_idle_rounds =
    4;  // rounds in a row that end before there is a moment for a fault
constexpr int most_bad_rounds = 3;
constexpr std::int64_t growth_that_counts = std::int64_t{64} << 20;  // bytes of all processes
// What a start's processes do before their memory is looked at for the first time: caches of
// allocators, the log's buffers and those of checkpoints have their size then.
constexpr std::int64_t steps_to_settle = 20, checkpoints_to_settle = 2;

struct Reference {
  std::vector<double> losses;
  std::int64_t ranks = 1;
  double seconds = 0;             // that it took
  std::vector<SourceFile> files;  // of its data
};

Error unusable(const std::string& what, const std::string& hint) {
  return Error(Stage::script, "chaos.script", "", "chaos: " + what, hint);
}

// Runs the program with these words and returns its exit code; what it prints goes to a file.
// The user's wish for an end ends it, unless it looks at what is there when all has ended.
// `meanwhile` is called again and again until it has ended, and once after that.
int run_program(
    const std::vector<std::string>& words, const fs::path& output, bool at_the_end,
    const std::function<void()>& meanwhile = [] {}) {
  ProcessStart process;
  process.command = {"/bin/sh", "-c", "exec \"$@\" 2>\"$0.err\"", output.string(),
                     program_path().string()};
  process.command.insert(process.command.end(), words.begin(), words.end());
  process.output = output.string();
  const pid_t child = start_process(process);
  int status = 0;
  for (bool asked = false; !child_ended(child, status);) {
    // A signal that came before the child was there has not reached it.
    if (!at_the_end && end_is_wished() && !asked) asked = ::kill(child, SIGTERM) == 0;
    meanwhile();
    std::this_thread::sleep_for(between_asks);
  }
  meanwhile();
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Reads from a run's pipe how far it is.
class FarReader {
 public:
  FarReader(const fs::path& folder, const Listener& listener)
      : pipe_(opened_pipe(folder / steps_pipe)), listener_(listener) {}
  ~FarReader() { ::close(pipe_); }
  FarReader(const FarReader&) = delete;
  FarReader& operator=(const FarReader&) = delete;

  void look() {
    unread_ += all_in(pipe_);
    std::int64_t done = 0;
    double loss = 0;
    for (std::size_t end = 0; (end = unread_.find('\n')) != std::string::npos;) {
      const std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      char* rest = nullptr;
      if (line.starts_with("start ")) {
        steps_ = std::strtoll(line.c_str() + 6, nullptr, 10);
      } else {
        done = std::strtoll(line.c_str(), &rest, 10) + 1;
        loss = std::strtod(rest, nullptr);
      }
    }
    if (done > 0) listener_.progress(done, steps_, loss);
  }

 private:
  const int pipe_;
  const Listener& listener_;
  std::int64_t steps_ = 0;
  std::string unread_;
};

// Trains as the script says, without faults, with processes that are started as they will be with
// faults. Nothing if the user wishes an end.
std::optional<Reference> train_undisturbed(const Start& start, const fs::path& folder,
                                           const Listener& listener) {
  fs::create_directories(folder);
  FarReader far(folder, listener);
  std::vector<std::string> words = start.words_of_run();
  words.insert(words.end(), {"--set", "log=nil", "--set", "checkpoint=nil", "--set", "resume=nil",
                             "--chaos", folder.string()});
  if (!start.launcher.empty())
    words.insert(words.end(), {"--max-restarts", "0", "--launcher", start.launcher});
  if (!start.words.empty()) words.emplace_back("--");
  words.insert(words.end(), start.words.begin(), start.words.end());
  const fs::path output = folder / "stdout";
  const double began = monotonic_seconds();
  const int code = run_program(words, output, false, [&] { far.look(); });
  const double seconds = monotonic_seconds() - began;
  if (end_is_wished()) return std::nullopt;
  std::vector<Json> runs;
  std::string why;
  std::istringstream stream(whole_file(output).value_or(""));
  for (std::string line; std::getline(stream, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;
    if (json.value("kind", "") == "train") runs.push_back(json);
    if (json.value("kind", "") == "error" && why.empty()) why = json.value("message", "");
  }
  if (code != 0)
    throw unusable(fmt::format("without any fault {} ends with {}{}", start.script, code,
                               why.empty() ? "" : ": " + why),
                   "mend the script first: meshwright run " + start.script);
  if (runs.size() != 1)
    throw unusable(
        fmt::format("{} trains {} times, and one training is disturbed", start.script, runs.size()),
        "give a script with one mw.train");
  return Reference{losses_of(runs.front()), runs.front().value("ranks", std::int64_t{1}), seconds,
                   files_in(folder)};
}

// Why a kind is not for this training; empty: it is. `data`: there are copies of its data files.
std::string unfit(const FaultKind& kind, std::int64_t ranks, bool several, bool data) {
  if (kind.in_rank() && ranks < 2)
    return "it needs a plan of two ranks, as a rank meets it when it communicates";
  if (kind.several && !several) return "it needs several processes";
  if (kind.needs_clock() && !fs::exists(clock_library()))
    return clock_library().string() + " is not there";
  if (kind.needs_data() && !data)
    return "its data source lists no files, or files of more than 256 MiB, which are not copied";
  return "";
}

std::vector<const FaultKind*> chosen_kinds(const std::vector<std::string>& names,
                                           std::int64_t ranks, bool several, bool data,
                                           const Listener& listener) {
  std::vector<const FaultKind*> kinds;
  for (const FaultKind& kind : fault_kinds()) {
    const bool named = std::find(names.begin(), names.end(), kind.name) != names.end();
    if (!names.empty() && !named) continue;
    const std::string why = unfit(kind, ranks, several, data);
    if (named && !why.empty())
      throw Error(Stage::script, "usage.value", "", fmt::format("--kinds {}: {}", kind.name, why),
                  "leave it out, or change the plan or --processes");
    if (why.empty())
      kinds.push_back(&kind);
    else
      listener.say(fmt::format("not tried: {}: {}", kind.name, why));
  }
  return kinds;
}

class Chaos {
 public:
  Chaos(const Wishes& wishes, const fs::path& folder, Reference reference, Outcome& outcome,
        const Listener& listener)
      : wishes_(wishes),
        listener_(listener),
        outcome_(outcome),
        several_(wishes.start.processes > 1 || !wishes.start.launcher.empty()),
        kinds_(chosen_kinds(wishes.kinds, reference.ranks, several_, !wishes.start.data.empty(),
                            listener)),
        began_(monotonic_seconds()),
        whole_(reference.seconds),
        run_(wishes.start, folder, std::move(reference.losses)),
        faults_(run_, reference.ranks, several_, wishes.seed) {}

  void run() {
    run_.begin_anew();
    for (std::int64_t number = 1; !enough(number); ++number) {
      const FaultKind& kind = next_kind();
      if (!await_moment(kind)) break;
      weigh();
      run_.mark();  // takes what the run has said until now
      if (note_wrong_loss(fmt::format(", before fault {}", number))) {
        run_.stop();
        run_.begin_anew();
        continue;
      }
      Record record = faults_.make(kind, number);
      record.at = monotonic_seconds() - began_;
      if (end_is_wished()) break;
      take(std::move(record), kind);
    }
    finish();
  }

 private:
  bool enough(std::int64_t number) const {
    if (end_is_wished()) return true;
    if (wishes_.faults > 0 && number > wishes_.faults) return true;
    return wishes_.minutes > 0 && monotonic_seconds() - began_ >= 60 * wishes_.minutes;
  }

  // Whether the training has computed with a wrong number since the last fault was judged.
  bool note_wrong_loss(const std::string& when) {
    if (run_.wrong() < 0) return false;
    outcome_.wrong.push_back(fmt::format("another loss at step {}{}", run_.wrong(), when));
    return true;
  }

  // Each kind once, in an order that is drawn, then each once more.
  const FaultKind& next_kind() {
    if (deck_.empty()) {
      deck_ = kinds_;
      for (std::size_t i = deck_.size(); i > 1; --i)
        std::swap(deck_[i - 1],
                  deck_[static_cast<std::size_t>(faults_.draw(static_cast<std::int64_t>(i) - 1))]);
    }
    const FaultKind* kind = deck_.back();
    deck_.pop_back();
    return *kind;
  }

  // Lets the training alone for a while, and begins it anew where it is done.
  bool await_moment(const FaultKind& kind) {
    double quiet = wishes_.every * (0.5 + faults_.share());
    for (int idle = 0; idle < most_idle_rounds;) {
      const double since = monotonic_seconds();
      run_.watch(quiet, [&] { return run_.over(); });
      quiet = std::max(0.0, quiet - (monotonic_seconds() - since));
      if (!run_.over())
        run_.watch(at_this_load(to_begin), [&] { return faults_.ready_for(kind) || run_.over(); });
      if (end_is_wished()) return false;
      if (!run_.over() && faults_.ready_for(kind)) return true;
      if (!run_.over()) break;
      if (!close_round() && ++bad_rounds_ == most_bad_rounds) return false;
      run_.begin_anew();
      ++idle;
    }
    outcome_.wrong.push_back(fmt::format(
        "there was no moment for the fault {}: the training must go on for longer than {:.1f} s "
        "and write checkpoints",
        kind.name, wishes_.every));
    return false;
  }

  // A training has ended by itself.
  bool close_round() {
    std::string wrong;
    if (!run_.done()) {
      wrong = fmt::format("a training without faults ended with {}: {}", run_.exit_code(),
                          run_.complaint());
    } else {
      wrong = run_.wrong_in_result();
      if (wrong.empty()) wrong = run_.wrong_in_whole_run_file();
      if (wrong.empty() && run_.wrong() >= 0)
        wrong = fmt::format("another loss at step {}", run_.wrong());
    }
    run_.forgive();  // it has been said
    if (wrong.empty())
      ++outcome_.rounds;
    else
      outcome_.wrong.push_back(wrong);
    return wrong.empty();
  }

  void take(Record record, const FaultKind& kind) {
    const Weight weight = weigh();
    record.processes = weight.processes;
    record.resident = weight.bytes;
    record.grown = weight.grown;
    const bool spoiled = kind.fate == Fate::unseen || run_.wrong() >= 0;
    if (!record.met) note_wrong_loss(fmt::format(", before fault {}", record.number));
    if (kind.fate != Fate::unseen && record.met && record.wrong.empty() && !spoiled)
      record.wrong = run_.wrong_in_run_file();
    listener_.heard(record);
    outcome_.records.push_back(std::move(record));
    // A training that has computed with a wrong number is of no further use.
    if (spoiled || !outcome_.records.back().wrong.empty()) {
      run_.stop();
      run_.begin_anew();
    }
  }

  struct Weight {
    std::vector<pid_t> processes;
    std::int64_t bytes = 0;
    std::optional<std::int64_t> grown;  // since the first look at these processes
  };
  // What the processes that train hold now. The first look at those of a start is kept once they
  // have settled.
  Weight weigh() {
    Weight now{run_.members().ranks, 0, std::nullopt};
    for (const pid_t each : now.processes) now.bytes += resident_bytes(each);
    if (now.processes.empty()) return now;
    if (now.processes != weighed_) {
      // Unless they have said that they begin, the steps that are known are of those before them.
      if (run_.begun() == begun_) return now;
      weighed_ = now.processes;
      begun_ = run_.begun();
      first_bytes_.reset();
    }
    if (first_bytes_) {
      ++outcome_.weighed;
    } else if (settled()) {
      first_bytes_ = now.bytes;
    } else {
      return now;
    }
    now.grown = now.bytes - *first_bytes_;
    outcome_.grown = std::max(outcome_.grown, *now.grown);
    return now;
  }

  bool settled() const {
    const std::int64_t first = run_.first_step();
    if (first < 0 || run_.next_step() - first < steps_to_settle) return false;
    const std::vector<std::int64_t> steps = run_.checkpoint_steps();
    return std::count_if(steps.begin(), steps.end(), [&](std::int64_t at) { return at > first; }) >=
           checkpoints_to_settle;
  }

  void finish() {
    weigh();
    outcome_.interrupted = end_is_wished();
    // Twice as long as without faults, and ten seconds for a start.
    const double left = 10 + 2 * whole_ * static_cast<double>(run_.steps() - run_.next_step()) /
                                 static_cast<double>(run_.steps());
    if (!outcome_.interrupted && !run_.over() && left < to_finish)
      run_.watch(to_finish, [&] { return run_.over(); });
    look_at_end();
    if (run_.over() && !outcome_.interrupted && bad_rounds_ < most_bad_rounds) close_round();
    if (!run_.stop()) outcome_.wrong.push_back("processes outlived the end of the run");
    note_wrong_loss(", after the last fault");
    if (const std::string wrong = run_.wrong_in_run_file(); !wrong.empty())
      outcome_.wrong.push_back(wrong);
    look_at_checkpoints();
    look_at_files();
    if (const std::string why = outcome_.why_untried(); !why.empty() && !outcome_.interrupted)
      outcome_.wrong.push_back(why);
    if (outcome_.grown > growth_that_counts)
      outcome_.wrong.push_back(fmt::format("processes have grown by {} while they were disturbed",
                                           format_bytes(static_cast<double>(outcome_.grown))));
  }

  // A training that has done its last step comes to its end, and does not hang there.
  void look_at_end() {
    if (outcome_.interrupted || run_.over() || run_.next_step() < run_.steps()) return;
    const double patience = at_this_load(to_finish);
    if (run_.watch(patience, [&] { return run_.over(); }) || end_is_wished()) return;
    outcome_.wrong.push_back(
        fmt::format("all steps are done, and the run has not ended in {:.0f} s", patience));
  }

  void look_at_checkpoints() {
    if (run_.checkpoint_steps().empty()) return;
    const fs::path output = run_.folder() / "checkpoints.txt";
    const int code = run_program({"checkpoints", run_.checkpoints().string()}, output, true);
    if (code == 0 || end_is_wished()) return;  // a wish ends the look too
    outcome_.wrong.push_back("a checkpoint is broken: " + whole_file(output).value_or(""));
  }

  // What a launcher that was killed leaves is cleared away by the next one, once it is ten seconds
  // old.
  void look_at_files() {
    std::vector<std::string> left;
    std::error_code error;
    for (const fs::path& folder : {run_.folder() / "tmp", run_.checkpoints()}) {
      for (fs::directory_iterator at(folder, error), end; !error && at != end;
           at.increment(error)) {
        const std::string name = at->path().filename();
        const bool kept = name.starts_with("step-") || name.starts_with("meshwright-mpirun-") ||
                          name.ends_with(".lock") || name == ".lock" || name == ".in-use";
        if (!kept) left.push_back(fs::relative(at->path(), run_.folder()).string());
      }
    }
    if (!left.empty()) outcome_.wrong.push_back("temporary files are left: " + join(left));
  }

  const Wishes& wishes_;
  const Listener& listener_;
  Outcome& outcome_;
  const bool several_;
  const std::vector<const FaultKind*> kinds_;
  const double began_, whole_;  // whole_: seconds of a training without faults
  DisturbedRun run_;
  Faults faults_;
  std::vector<const FaultKind*> deck_;  // to be drawn from its end
  int bad_rounds_ = 0;
  std::vector<pid_t> weighed_;  // the processes of the last look
  std::int64_t begun_ = -1;     // how often the run had begun then
  std::optional<std::int64_t> first_bytes_;
};

}  // namespace

Outcome disturb(const Wishes& wishes, const fs::path& folder, const Listener& listener) {
  listener.say("the training without faults, whose time --minutes does not count");
  std::optional<Reference> reference =
      train_undisturbed(wishes.start, folder / "undisturbed", listener);
  Outcome outcome;
  outcome.interrupted = !reference;
  if (!reference) return outcome;
  outcome.ranks = reference->ranks;
  outcome.steps = static_cast<std::int64_t>(reference->losses.size());
  listener.say(fmt::format("{}, {}; with faults from here on, seed {}",
                           plural(outcome.ranks, "rank"), plural(outcome.steps, "step"),
                           wishes.seed));
  Wishes all = wishes;
  const auto& named = wishes.kinds;
  const auto copies = [&](const FaultKind& kind) {
    const bool wished =
        named.empty() || std::find(named.begin(), named.end(), kind.name) != named.end();
    return wished && kind.needs_data();
  };
  if (std::any_of(fault_kinds().begin(), fault_kinds().end(), copies)) {
    if (!copy_data(reference->files, folder / data_folder, all.start))
      fs::remove_all(folder / data_folder);
  }
  Chaos(all, folder, *std::move(reference), outcome, listener).run();
  return outcome;
}

}  // namespace mw::chaos
