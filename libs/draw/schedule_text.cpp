// Draws a schedule as a grid of characters for a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "draw/palette.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr int fewest_columns = 24;
constexpr int widest_unit = 6;  // most columns of the shortest action, for small schedules

struct Cell {
  int from = 0, to = 0;  // columns
  const TimedAction* work = nullptr;
  int width() const { return to - from; }
};

int digits_of(int number) {
  return static_cast<int>(std::to_string(number).size());
}

// The number as text, or its last digit if it is wider than `width`.
std::string number_in(int number, int width) {
  return digits_of(number) <= width ? std::to_string(number) : std::to_string(number % 10);
}

char letter_in_case(const TimedAction& work) {
  const char letter = work.name.empty() ? '?' : work.name[0];
  return work.chunk % 2 == 0 ? letter : static_cast<char>(letter - 'A' + 'a');
}

class Grid {
 public:
  Grid(const Schedule& schedule, const ScheduleTimeline& timeline, int columns, bool colour)
      : schedule_(schedule), timeline_(timeline), colour_(colour) {
    label_ = digits_of(schedule.stages() - 1);
    room_ = std::max(fewest_columns, columns) - label_ - 1;
    measure();
  }

  std::string text() const {
    std::string out;
    if (span_ <= 0) return out;
    for (std::size_t s = 0; s < timeline_.stages.size(); ++s) {
      const std::string label = fmt::format("{:>{}}", s, label_);
      if (shortest_ * scale_ < 1 - 1e-9) {
        out += line(label, dense(timeline_.stages[s]));
        continue;
      }
      int lanes = 1;
      for (const TimedAction& work : timeline_.stages[s]) lanes = std::max(lanes, work.lanes);
      for (int lane = 0; lane < lanes; ++lane)
        out += lane_lines(lane == 0 ? label : without_label(), timeline_.stages[s], lane);
    }
    return out + legend();
  }

 private:
  std::string without_label() const { return std::string(static_cast<std::size_t>(label_), ' '); }

  // The lines of one lane of a stage. Lane 0 has the actions without a group and the first action
  // of each group; further lanes have the other actions of groups.
  std::string lane_lines(const std::string& label, const std::vector<TimedAction>& works,
                         int lane) const {
    std::vector<TimedAction> own;
    for (const TimedAction& work : works)
      if (work.lane == lane) own.push_back(work);
    const char* const nothing = lane == 0 ? "·" : " ";
    if (colour_ || narrowest_ > most_digits_) return line(label, in_one_line(own, nothing));
    const auto [letters, numbers] = in_two_lines(own, nothing);
    return line(label, letters) + without_label() + "|" + numbers + '\n';
  }

  void measure() {
    bool first = true;
    double unit = 0;
    for (const auto& works : timeline_.stages) {
      for (const TimedAction& work : works) {
        const double seconds = work.end - work.start;
        begin_ = first ? work.start : std::min(begin_, work.start);
        end_ = std::max(first ? work.end : end_, work.end);
        first = false;
        if (seconds > 0) unit = unit > 0 ? std::min(unit, seconds) : seconds;
        most_digits_ = std::max(most_digits_, digits_of(work.microbatch));
      }
    }
    span_ = end_ - begin_;
    shortest_ = unit;
    if (span_ <= 0) return;
    scale_ = std::min(room_ / span_, widest_unit / unit);
    // If all times are multiples of the shortest one, it gets a whole number of columns, so that
    // equal actions look alike.
    bool whole = scale_ * unit >= 1 - 1e-9;
    for (const auto& works : timeline_.stages)
      for (const TimedAction& work : works)
        for (const double time : {work.start - begin_, work.end - begin_})
          whole = whole && std::abs(time / unit - std::round(time / unit)) < 1e-6;
    if (whole) scale_ = std::floor(scale_ * unit + 1e-9) / unit;
    narrowest_ = std::max(1, static_cast<int>(shortest_ * scale_ + 1e-9));
  }

  int column(double time) const { return static_cast<int>(std::lround((time - begin_) * scale_)); }

  std::vector<Cell> cells(const std::vector<TimedAction>& works) const {
    std::vector<Cell> out;
    for (const TimedAction& work : works) {
      const Cell cell = {column(work.start), column(work.end), &work};
      if (cell.width() > 0) out.push_back(cell);
    }
    return out;
  }

  static std::string line(const std::string& label, const std::string& grid) {
    return fmt::format("{}|{}\n", label, grid.substr(0, grid.find_last_not_of(' ') + 1));
  }

  static std::string idle(int columns, const char* nothing = "·") {
    std::string out;
    for (int i = 0; i < columns; ++i) out += nothing;
    return out;
  }

  std::string painted(const TimedAction& work, const std::string& text) const {
    if (!colour_) return text;
    return escape_of(work) + text + "\x1b[0m";
  }

  // Draws actions as "F12---", with letter and number, or the number alone if there is no room.
  std::string in_one_line(const std::vector<TimedAction>& works, const char* nothing) const {
    std::string out;
    int at = 0;
    for (const Cell& cell : cells(works)) {
      out += idle(cell.from - at, nothing);
      at = cell.to;
      const int number = cell.work->microbatch;
      const bool lettered = cell.width() > digits_of(number);
      std::string text = lettered ? letter_in_case(*cell.work) + std::to_string(number)
                                  : number_in(number, cell.width());
      text.resize(static_cast<std::size_t>(cell.width()), colour_ ? ' ' : '-');
      out += painted(*cell.work, text);
    }
    return out + idle(column(end_) - at, nothing);
  }

  std::pair<std::string, std::string> in_two_lines(const std::vector<TimedAction>& works,
                                                   const char* nothing) const {
    std::string letters, numbers;
    int at = 0;
    for (const Cell& cell : cells(works)) {
      letters += idle(cell.from - at, nothing);
      numbers.append(static_cast<std::size_t>(cell.from - at), ' ');
      at = cell.to;
      const auto width = static_cast<std::size_t>(cell.width());
      letters.append(width, letter_in_case(*cell.work));
      std::string number = number_in(cell.work->microbatch, cell.width());
      number.resize(width, ' ');
      numbers += number;
    }
    numbers.erase(numbers.find_last_not_of(' ') + 1);
    return {letters + idle(column(end_) - at, nothing), numbers};
  }

  // A stage in one line whose columns stand for several actions each. Each action's letter appears
  // in proportion to its time: what a column cannot show is carried over to the next columns.
  std::string dense(const std::vector<TimedAction>& works) const {
    struct Kind {
      const TimedAction* work = nullptr;  // nullptr: idle
      double owed = 0;
    };
    std::vector<Kind> kinds(1);
    std::string out;
    std::size_t first = 0;
    for (int c = 0; c < column(end_); ++c) {
      const double from = begin_ + c / scale_, to = from + 1 / scale_;
      double idle_here = to - from;
      while (first < works.size() && works[first].end <= from) ++first;
      for (std::size_t i = first; i < works.size() && works[i].start < to; ++i) {
        const double part =
            (std::min(to, works[i].end) - std::max(from, works[i].start)) / works[i].lanes;
        if (part <= 0) continue;
        idle_here -= part;
        auto same = std::find_if(kinds.begin() + 1, kinds.end(), [&](const Kind& kind) {
          return kind.work->name == works[i].name && kind.work->chunk == works[i].chunk;
        });
        if (same == kinds.end()) same = kinds.insert(kinds.end(), Kind{&works[i], 0});
        same->owed += part;
      }
      kinds[0].owed += idle_here;
      const auto most = std::max_element(
          kinds.begin(), kinds.end(), [](const Kind& x, const Kind& y) { return x.owed < y.owed; });
      most->owed -= to - from;
      out += most->work == nullptr
                 ? idle(1)
                 : painted(*most->work, std::string(1, letter_in_case(*most->work)));
    }
    return out;
  }

  std::string legend() const {
    std::vector<std::string> parts;
    int most_chunk = 0;
    for (const Shade& shade : shades) {
      const TimedAction* example = nullptr;
      for (const auto& works : timeline_.stages) {
        for (const TimedAction& work : works) {
          if (work.name != shade.name) continue;
          if (example == nullptr || work.chunk < example->chunk) example = &work;
          most_chunk = std::max(most_chunk, work.chunk);
        }
      }
      if (example != nullptr)
        parts.push_back(painted(*example, std::string(shade.name)) + " " +
                        std::string(shade.words));
    }
    parts.emplace_back("· idle");
    if (most_chunk > 0) parts.emplace_back("lower case: odd chunks");
    const bool dense = shortest_ * scale_ < 1 - 1e-9;
    if (!dense && schedule_.grouped()) parts.emplace_back("one below the other: a group");
    if (dense) {
      parts.emplace_back("letters in proportion to time");
    } else if (narrowest_ < most_digits_) {
      parts.emplace_back("of a number its last digit where it is narrow");
    }
    // Three digits are enough for a grid.
    parts.push_back(fmt::format("a column is {:.3g}", 1 / scale_));
    return wrapped(parts);
  }

  std::string wrapped(const std::vector<std::string>& parts) const {
    const std::string indent(static_cast<std::size_t>(label_ + 1), ' ');
    std::string out, current;
    int width = 0;
    for (const std::string& part : parts) {
      const int more = visible(part) + (width > 0 ? 2 : 0);
      if (width > 0 && width + more > room_) {
        out += indent + current + '\n';
        current.clear();
        width = 0;
      }
      if (width > 0) current += "  ";
      current += part;
      width += more;
    }
    return out + indent + current + '\n';
  }

  static int visible(const std::string& text) {
    int escapes = 0;
    for (std::size_t i = 0; i < text.size(); ++i)
      if (text[i] == '\x1b')
        for (++escapes; text[i] != 'm'; ++i) ++escapes;
    return static_cast<int>(display_width(text)) - escapes;
  }

  const Schedule& schedule_;
  const ScheduleTimeline& timeline_;
  bool colour_;
  int label_ = 1, room_ = 0, most_digits_ = 1, narrowest_ = 1;
  double begin_ = 0, end_ = 0, span_ = 0, shortest_ = 0, scale_ = 1;
};

}  // namespace

std::string draw_text(const Schedule& schedule, const ScheduleTimeline& timeline, int columns,
                      bool colour) {
  return Grid(schedule, timeline, columns, colour).text();
}

}  // namespace mw
