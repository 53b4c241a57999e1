// What a person sees while a run goes on: on a terminal one line that is rewritten, else a plain
// line now and then. Fed by one thread, with its own clock readings, so that it can be tested.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace mw {

struct ProgressStep {
  std::int64_t step = 0;  // from 0
  double loss = 0;
  double seconds = 0;           // seconds that the step took
  std::int64_t tokens = 0;      // tokens of the step, over all ranks; 0: not known
  std::int64_t peak_bytes = 0;  // peak of the rank that uses most; 0: not known
  bool has_loss = true;         // some label of the step counts
};

struct ProgressLine {
  std::int64_t done = 0, steps = 0;  // steps done, and steps of the run
  double loss = 0;
  double tokens_per_second = 0;  // 0: not known
  std::int64_t peak_bytes = 0;
  double seconds_left = 0;
  bool has_loss = true;  // some label of the step counts
};

// "8 s", "1:05", "2:03:00", "3 d 4 h"; "?" if not finite or negative.
std::string format_duration(double seconds);
// "950", "18.2k", "1.25M": three significant digits.
std::string format_count(double value);
// "step  7/100  loss 5.4321  18.2k tokens/s  312 MiB/rank  0:12 left". With `color`, ANSI escapes
// make words faint and a loss that is not finite red. Cut to `columns` if that is not 0: whole
// items only, from the end.
std::string format_progress(const ProgressLine& line, bool color = false, std::size_t columns = 0);

struct ProgressStyle {
  bool rewrite = false;  // one line, rewritten; else plain lines
  bool color = false;
  double interval = 5;         // seconds between plain lines
  double rewrite_after = 0.1;  // seconds between rewritings
};
// Rewrites if `out` is a terminal and TERM is not "dumb"; colours unless NO_COLOR is set and not
// empty.
ProgressStyle style_for(std::FILE* out);

class Progress {
 public:
  Progress(std::FILE* out, std::int64_t steps, ProgressStyle style);
  ~Progress();  // ends a line that was being rewritten
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows the step if it is time to: the first, the last, and one each interval. `now`: seconds on
  // any clock that does not go back.
  void step(const ProgressStep& report, double now);
  // Prints a line of its own, above the one that is rewritten.
  void note(const std::string& text);
  // Leaves the line as it is now, and puts the cursor below it.
  void finish();

 private:
  void show(const ProgressLine& line);
  void put(const std::string& text) const;

  std::FILE* out_;
  std::int64_t steps_;
  ProgressStyle style_;
  double seconds_per_step_ = 0, shown_at_ = 0;
  std::int64_t seen_ = 0;
  ProgressLine last_;
  std::string shown_;  // the line on the screen; empty: none
};

}  // namespace mw
