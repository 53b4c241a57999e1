// `meshwright runs tail`: a run's last steps, and with -f those that come until it ends.
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "app/runs_rows.h"
#include "meshwright/engine/text.h"
#include "record/run_reader.h"
#include "record/run_set.h"

namespace mw {
namespace {

constexpr std::chrono::milliseconds between_looks{200};
// failed looks in a row, as the file in a run folder may be being replaced
constexpr int most_failures = 25;

std::string step_text(const StepRow& row) {
  return fmt::format("{:>8}  loss {:<10} norm {:<10} lr {:<10} {:>10}  {:>8} tokens/s", row.step,
                     field_text("loss", row.loss), field_text("grad_norm", row.grad_norm),
                     fmt::format("{:.3g}", row.lr), field_text("seconds", row.seconds),
                     field_text("tokens_per_second", row.tokens_per_second));
}

Json step_json(const StepRow& row) {
  return {{"kind", "step"},
          {"step", row.step},
          {"seconds", row.seconds},
          {"loss", row.loss},
          {"grad_norm", row.grad_norm},
          {"lr", row.lr},
          {"tokens", row.tokens},
          {"tokens_per_second", row.tokens_per_second},
          {"mfu", row.mfu},
          {"bubble", row.bubble},
          {"cpu_seconds", row.cpu_seconds},
          {"others_cores", row.others_cores},
          {"throttled_cores", row.throttled_cores},
          {"clock", row.clock}};
}

class Follower {
 public:
  Follower(std::filesystem::path path, Output& output) : path_(std::move(path)), output_(output) {}

  // Shows the steps that are new; at the first look only the last `most`. Returns the run's entry,
  // which says whether it has ended.
  RunEntry look(std::uint64_t most, Probe probe) {
    // The entry is read before the rows, so that no row is missed when it says that the run has
    // ended.
    RunEntry entry = read_entry(path_, probe);
    RunReader reader(path_, probe);
    const std::uint64_t rows = reader.rows("steps");
    if (created_ != entry.created || rows < shown_) {
      if (!created_.empty()) output_.note("another run has taken this file; from its first step:");
      shown_ = created_.empty() && rows > most ? rows - most : 0;
      created_ = entry.created;
    }
    for (const StepRow& row : steps_of(reader.table("steps", shown_))) {
      if (!output_.json()) output_.text(step_text(row));
      output_.result(step_json(row));
      ++shown_;
    }
    return entry;
  }
  std::uint64_t shown() const { return shown_; }

 private:
  std::filesystem::path path_;
  Output& output_;
  std::string created_;
  std::uint64_t shown_ = 0;  // rows of /steps that were shown or skipped
};

int tail_run(const RunsArguments& arguments, Output& output) {
  const RunEntry first = find_run(arguments.files.front());
  Follower follower(first.path, output);
  RunEntry entry;
  reading(first.path,
          [&] { entry = follower.look(static_cast<std::uint64_t>(arguments.last), Probe::yes); });
  for (int failures = 0; arguments.follow && !entry.ended();) {
    std::this_thread::sleep_for(between_looks);
    try {
      // After a look that failed the file may be another one, so it is probed again.
      entry = follower.look(0, failures == 0 ? Probe::no : Probe::yes);
      failures = 0;
    } catch (const Error&) {
      if (++failures > most_failures) throw;
    }
  }
  std::string end = readable_line(fmt::format("{}: {}", entry.name, entry.status));
  if (!entry.reason.empty()) end += ": " + readable_line(entry.reason);
  if (follower.shown() == 0) end += "; no step is written yet";
  output.note(end);
  return 0;
}

const CommandOf<RunsArguments> runs_tail_command{
    {"runs tail", 155, "a run's last steps, and with -f those that come"},
    [](CLI::App& command, RunsArguments& a) {
      command.footer("-f runs/x.h5");
      add_run_files(command, a)->required()->expected(1);
      command.add_flag("-f,--follow", a.follow, "go on until the run ends");
      command.add_option("-n,--steps", a.last, "how many steps (default 10)")
          ->check(CLI::Range(0, 1 << 30));
      add_json(command, a);
    },
    tail_run};

}  // namespace
}  // namespace mw
