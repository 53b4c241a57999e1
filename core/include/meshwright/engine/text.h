// Text for people: lists, quotes, numbers and tables as the terminal shows them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mw {

// "a, b, c".
std::string join(const std::vector<std::string>& parts, std::string_view separator = ", ");
// The parts in quotes.
std::string join_quoted(const std::vector<std::string>& parts, std::string_view separator = ", ");
// "tp" -> "\"tp\"", with inner quotes, backslashes and control characters escaped.
std::string quote(std::string_view text);
// The text with every byte that is no part of a UTF-8 character, and every control character but
// "\n" and "\t", as "\xff": what others wrote, fit for a terminal and for JSON.
std::string readable(std::string_view text);
// The same with "\n" and "\t" too, so that it stays on its line: a name, a cell of a table.
std::string readable_line(std::string_view text);
// "did you mean \"ways\"?"; empty if no candidate is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);
// The shortest text that reads back as `value`: 0.1, 3, 1e-08.
std::string format_number(double value);
// 1 -> "1 option", 3 -> "3 options".
std::string plural(std::int64_t count, std::string_view noun);
// Columns that a terminal needs for `text`: code points of UTF-8, wide characters not considered.
std::size_t display_width(std::string_view text);

// Broken between words so that no line is wider than `width`, if no word is; lines after the first
// begin with so many spaces. Without a newline at its end.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent = 0);

// Rows of cells, padded to columns. Numbers read better right-aligned: `right` names such columns.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header, std::vector<std::size_t> right = {});
  void add(std::vector<std::string> row);  // short rows are padded with empty cells
  bool empty() const { return rows_.empty(); }
  // Header, rule and rows, each line starting with `indent` and ending with a newline, no trailing
  // spaces. A table without a header (all cells empty) prints rows only.
  std::string text(std::string_view indent = "") const;

 private:
  std::vector<std::string> header_;
  std::vector<std::size_t> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace mw
