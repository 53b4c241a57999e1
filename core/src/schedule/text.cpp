// Reads and writes schedules as CSV and as text.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "meshwright/engine/text.h"
#include "meshwright/schedule.h"

namespace mw {
namespace {

// Beyond any machine; keeps a mistyped number from asking for all memory.
constexpr int most_index = 1 << 20;

constexpr const char* cell_form =
    "a cell is <virtual stage><F, B, I or W><microbatch>, such as 2F0, or a group of works: "
    "0F5+7B1, or (0F5;7B1)OVERLAP_F_B";

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\"");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\"") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (std::size_t from = 0;;) {
    const auto to = text.find(separator, from);
    out.push_back(text.substr(from, to == std::string_view::npos ? to : to - from));
    if (to == std::string_view::npos) return out;
    from = to + 1;
  }
}

std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || value < 0 || value > most_index || text[0] == '-') return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<Action> parse_action(std::string_view text) {
  text = trimmed(text);
  const auto vstage = take_number(text);
  if (!vstage || text.empty()) return {};
  Action action;
  action.vstage = *vstage;
  const auto kind = std::string_view("FBIW").find(text[0]);
  if (kind == std::string_view::npos) return {};
  action.work = static_cast<Work>(kind);
  text.remove_prefix(1);
  const auto microbatch = take_number(text);
  if (!microbatch || !text.empty()) return {};
  action.microbatch = *microbatch;
  return action;
}

// Empty if the cell is no list of actions.
std::vector<Action> parse_cell(std::string_view cell) {
  std::vector<std::string_view> parts = split(cell, '+');
  if (cell.front() == '(') {
    const auto close = cell.find(')');
    if (close == std::string_view::npos || cell.substr(close + 1) != "OVERLAP_F_B") return {};
    parts = split(cell.substr(1, close - 1), ';');
  }
  std::vector<Action> actions;
  for (const std::string_view part : parts) {
    const auto action = parse_action(part);
    if (!action) return {};
    actions.push_back(*action);
  }
  return actions;
}

[[noreturn]] void refuse(const char* code, const std::string& name, std::size_t row,
                         std::size_t cell, const std::string& what, const std::string& hint) {
  throw Error(Stage::plan, code, fmt::format("schedule[{}][{}]", row + 1, cell + 1),
              fmt::format("schedule {}, row {}, cell {}: {}", quote(name), row + 1, cell + 1, what),
              hint);
}

class Reader {
 public:
  explicit Reader(std::string name) { schedule_.name = std::move(name); }

  void start_row() {
    schedule_.order.emplace_back();
    cell_ = 0;
  }

  void add(std::string_view cell) {
    cell = trimmed(cell);
    if (!cell.empty()) {
      const auto actions = parse_cell(cell);
      if (actions.empty()) {
        refuse("schedule.cell", schedule_.name, row(), cell_,
               fmt::format("{} is not an action", quote(cell)),
               fmt::format("{}; sends, receives and gathers are added by the core", cell_form));
      }
      for (const Action& action : actions) place(action);
      const std::size_t end = schedule_.order.back().size();
      for (std::size_t k = end - actions.size(); k + 1 < end; ++k)
        schedule_.join(static_cast<int>(row()), k);
    }
    ++cell_;
  }

  Schedule finish() {
    if (schedule_.order.empty()) {
      throw Error(Stage::plan, "schedule.empty", "schedule",
                  fmt::format("schedule {} is empty", quote(schedule_.name)),
                  fmt::format("a row for each stage; {}", cell_form));
    }
    for (std::size_t v = 0; v < schedule_.stage_of.size(); ++v) {
      if (schedule_.stage_of[v] >= 0) continue;
      throw Error(
          Stage::plan, "schedule.range", "schedule",
          fmt::format("schedule {} has works of virtual stage {} but none of virtual stage {}",
                      quote(schedule_.name), schedule_.stage_of.size() - 1, v),
          "virtual stages count from 0 without gaps");
    }
    for (std::size_t s = 0; s < schedule_.order.size(); ++s) {
      if (!schedule_.order[s].empty()) continue;
      throw Error(Stage::plan, "schedule.empty", fmt::format("schedule[{}]", s + 1),
                  fmt::format("schedule {}, row {}: no action for stage {}", quote(schedule_.name),
                              s + 1, s),
                  "every stage holds a virtual stage at least; remove the row");
    }
    return std::move(schedule_);
  }

 private:
  std::size_t row() const { return schedule_.order.size() - 1; }

  void place(const Action& action) {
    auto& stage_of = schedule_.stage_of;
    const auto v = static_cast<std::size_t>(action.vstage);
    if (stage_of.size() <= v) stage_of.resize(v + 1, -1);
    if (stage_of[v] < 0) stage_of[v] = static_cast<int>(row());
    if (stage_of[v] != static_cast<int>(row())) {
      refuse("schedule.home", schedule_.name, row(), cell_,
             fmt::format("{} is on virtual stage {}, which belongs to row {}", to_string(action), v,
                         stage_of[v] + 1),
             "all works of a virtual stage stand in one row");
    }
    schedule_.microbatches = std::max(schedule_.microbatches, action.microbatch + 1);
    schedule_.order.back().push_back(action);
  }

  Schedule schedule_;
  std::size_t cell_ = 0;
};

// Writes a line for each stage. `open`, `between` and `close` stand around and in groups.
std::string print(const Schedule& schedule, std::string_view separator, std::string_view open,
                  std::string_view between, std::string_view close) {
  std::string out;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const auto& actions = schedule.order[static_cast<std::size_t>(stage)];
    for (std::size_t i = 0; i < actions.size();) {
      if (i > 0) out += separator;
      const std::size_t first = i, end = schedule.group_end(stage, i);
      if (end > first + 1) out += open;
      for (; i < end; ++i) {
        if (i > first) out += between;
        out += to_string(actions[i]);
      }
      if (end > first + 1) out += close;
    }
    out += '\n';
  }
  return out;
}

// A newline at the end of the last line makes no difference.
std::vector<std::string_view> lines_of(std::string_view text) {
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos)
    text.remove_suffix(1);
  if (text.empty()) return {};
  return split(text, '\n');
}

}  // namespace

Schedule schedule_from_csv(const std::string& text, const std::string& name) {
  Reader reader(name);
  for (const std::string_view line : lines_of(text)) {
    reader.start_row();
    for (const std::string_view cell : split(line, ',')) reader.add(cell);
  }
  return reader.finish();
}

Schedule schedule_from_text(const std::string& text, const std::string& name) {
  Reader reader(name);
  for (std::string_view line : lines_of(text)) {
    if (trimmed(line).empty()) continue;
    reader.start_row();
    while (!(line = trimmed(line)).empty()) {
      const auto end = std::min(line.find_first_of(" \t"), line.size());
      reader.add(line.substr(0, end));
      line.remove_prefix(end);
    }
  }
  return reader.finish();
}

std::string to_csv(const Schedule& schedule) {
  return print(schedule, ",", "(", ";", ")OVERLAP_F_B");
}

std::string to_text(const Schedule& schedule) {
  return print(schedule, " ", "", "+", "");
}

}  // namespace mw
