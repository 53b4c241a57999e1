// Prints a training run's progress: step, loss, speed, memory and time left, on one rewritten
// line of a terminal or on plain lines elsewhere.
#include "app/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "meshwright/engine/text.h"
#include "meshwright/options.h"

namespace mw {

namespace {

constexpr const char *faint = "\x1b[2m", *red = "\x1b[31m", *plain = "\x1b[0m",
                     *clear_line = "\r\x1b[2K";

// One item of the line: a value between words, coloured apart.
struct Item {
  std::string before, value, after;
  bool alarm = false;

  std::size_t width() const { return before.size() + value.size() + after.size(); }
  std::string text(bool color) const {
    if (!color) return before + value + after;
    const auto painted = [](const char* paint, const std::string& text) {
      return text.empty() ? text : paint + text + plain;
    };
    return painted(faint, before) + (alarm ? painted(red, value) : value) + painted(faint, after);
  }
};

std::size_t columns_of(std::FILE* out) {
  winsize size{};
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e10) return "?";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  constexpr std::int64_t minute = 60, hour = 3600, day = 86400;
  if (whole < minute) return fmt::format("{} s", whole);
  if (whole < hour) return fmt::format("{}:{:02}", whole / minute, whole % minute);
  if (whole < day)
    return fmt::format("{}:{:02}:{:02}", whole / hour, whole % hour / minute, whole % minute);
  return fmt::format("{} d {} h", whole / day, whole % day / hour);
}

std::string format_count(double value) {
  if (!std::isfinite(value)) return "?";
  const char* units[] = {"", "k", "M", "G", "T", "P"};
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(units)) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f}", value);
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, units[unit]);
}

std::string format_progress(const ProgressLine& line, bool color, std::size_t columns) {
  const std::string steps = std::to_string(line.steps);
  std::vector<Item> items{{"step ", fmt::format("{:>{}}", line.done, steps.size()), "/" + steps},
                          {"loss ", line.has_loss ? fmt::format("{:.4f}", line.loss) : "none", "",
                           line.has_loss && !std::isfinite(line.loss)}};
  if (line.tokens_per_second != 0)
    items.push_back({"", format_count(line.tokens_per_second), " tokens/s"});
  if (line.peak_bytes > 0)
    items.push_back({"", format_bytes(static_cast<double>(line.peak_bytes)), "/rank"});
  if (line.done < line.steps) items.push_back({"", format_duration(line.seconds_left), " left"});
  std::string text;
  std::size_t width = 0;
  for (const Item& item : items) {
    const std::size_t wider = width + (width ? 2 : 0) + item.width();
    if (columns != 0 && width != 0 && wider > columns) break;
    if (width != 0) text += "  ";
    text += item.text(color);
    width = wider;
  }
  return text;
}

ProgressStyle style_for(std::FILE* out) {
  ProgressStyle style;
  const char *term = std::getenv("TERM"), *no_color = std::getenv("NO_COLOR");
  style.rewrite = ::isatty(::fileno(out)) && term && std::strcmp(term, "dumb") != 0;
  style.color = style.rewrite && (!no_color || !*no_color);
  return style;
}

Progress::Progress(std::FILE* out, std::int64_t steps, ProgressStyle style)
    : out_(out), steps_(steps), style_(style) {}

Progress::~Progress() {
  finish();
}

void Progress::step(const ProgressStep& report, double now) {
  // A running mean that forgets: the first step warms caches up and counts only until the second.
  ++seen_;
  const double weight = seen_ <= 2 ? 1.0 : std::max(0.1, 1.0 / static_cast<double>(seen_ - 1));
  seconds_per_step_ += weight * (report.seconds - seconds_per_step_);
  const bool last = report.step + 1 >= steps_;
  const double wait = style_.rewrite ? style_.rewrite_after : style_.interval;
  last_ = {report.step + 1,   steps_,
           report.loss,       static_cast<double>(report.tokens) / seconds_per_step_,
           report.peak_bytes, static_cast<double>(steps_ - report.step - 1) * seconds_per_step_,
           report.has_loss};
  if (seen_ > 1 && !last && now - shown_at_ < wait) return;
  shown_at_ = now;
  show(last_);
}

void Progress::show(const ProgressLine& line) {
  if (!style_.rewrite) {
    put(format_progress(line) + "\n");
  } else {
    // A line as wide as the terminal would wrap and could not be rewritten.
    const std::size_t columns = columns_of(out_);
    shown_ = format_progress(line, style_.color, columns > 1 ? columns - 1 : 0);
    put(clear_line + shown_);
  }
}

// Ignores write errors: a run goes on when nobody reads its progress any more.
void Progress::put(const std::string& text) const {
  std::fputs(text.c_str(), out_);
  std::fflush(out_);
}

void Progress::note(const std::string& given) {
  const std::string text = readable(given);
  if (shown_.empty())
    put(text + "\n");
  else
    put(clear_line + text + "\n" + shown_);
}

void Progress::finish() {
  if (shown_.empty()) return;
  show(last_);
  put("\n");
  shown_.clear();
}

}  // namespace mw
