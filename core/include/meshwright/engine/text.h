// Text for people: lists, quotes, numbers and tables as the terminal shows them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

// "a, b, c".
std::string join(const std::vector<std::string>& parts, std::string_view separator = ", ");
// The parts in quotes.
std::string join_quoted(const std::vector<std::string>& parts, std::string_view separator = ", ");
// "tp" -> "\"tp\"", with inner quotes, backslashes and control characters escaped.
std::string quote(std::string_view text);
// Escapes every byte that is no part of a UTF-8 character, and every control character but "\n" and
// "\t", as in "\xff", so that text from elsewhere is safe for a terminal and for JSON.
std::string readable(std::string_view text);
// As readable(), but escapes "\n" and "\t" too, so that the text stays on one line.
std::string readable_line(std::string_view text);
// "did you mean \"ways\"?"; empty if no candidate is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);
// As did_you_mean(), or "there are: a, b, c", with the first twelve candidates, if none is near.
std::string nearest_or_all(const std::string& word, const std::vector<std::string>& candidates);
// The shortest text that reads back as `value`: 0.1, 3, 1e-08.
std::string format_number(double value);
// 1 -> "1 option", 3 -> "3 options".
std::string plural(std::int64_t count, std::string_view noun);
// The time now, of UTC: "2026-11-22T13:00:00Z".
std::string now_text();
// Columns that a terminal needs for `text`: code points of UTF-8, wide characters not considered.
std::size_t display_width(std::string_view text);

// Breaks text between words into lines of at most `width` columns; only a longer word makes a
// longer line. Lines after the first begin with `indent` spaces. The result has no newline at its
// end.
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

// The hidden keys of tables that come from scripts.
//
// Keys that start with "$" are no options; readers skip them:
//   "$function"  a Lua function: {"$function": n, "$code": hex, "$plain": hex, "$defined":
//                "script.lua:12"}. The number is valid in one process. "$code" is a digest of the
//                function and its upvalues, the same in all processes; "$plain" leaves out tables
//                among the upvalues
//   "$value"     the unnamed values of a table that has named values too, as mw.text { "file",
//                order = … }; one value stands as it is, several as a list
//   "$at"        where the table was made, "script.lua:12"
//   "$strategy"  in an entry of a plan: the table of mw.strategy from which the entry was made.
//                place_of looks there for keys that the entry lacks
inline constexpr const char* function_key = "$function";
inline constexpr const char* code_key = "$code";
inline constexpr const char* plain_code_key = "$plain";
inline constexpr const char* defined_key = "$defined";
inline constexpr const char* unnamed_key = "$value";
inline constexpr const char* place_key = "$at";
inline constexpr const char* strategy_key = "$strategy";
// In an experiment: the keys whose values --set or another option has changed.
inline constexpr const char* changed_key = "$changed";

bool is_function(const Json& value);
// Names a value in a message: "4", "\"four\"", "true", "nil", "a table", "a list of 3",
// "a function", "the strategy dp(2)".
std::string describe(const Json& value);
// Writes a value as Lua: 4, "four", true, { 1, 2 }, { name = 1 }; functions as "function(…) … end".
std::string lua_text(const Json& value);
// Whether the key path `key` is that of the table, or of something inside the table.
bool lies_in(const std::string& key, const std::string& table);
// The path of a key of a table: key_in("plan[2]", "ways") is "plan[2].ways". A key that already is
// a path into the table is returned unchanged, as is any key if `table` is empty.
std::string key_in(const std::string& table, const std::string& key);
// The place ("script.lua:12") of the innermost table on the key path ("plan[2].ways") inside `root`
// that has a place; empty: none has. The path counts list elements from 1, as Lua does.
std::string place_of(const Json& root, const std::string& path);
// A problem as { stage =, code =, key =, message =, hint =, file =, line = }; `file` and `line` are
// null if no line of a script is known.
Json json_of(const Problem& problem);
// A copy of `value` without hidden keys, at any depth: the value as the user wrote it. Functions
// keep "$function" and "$code" alone; the unnamed values of a table get the key "value".
Json without_hidden(const Json& value);

// The version of this build, for people: "meshwright 0.1.0 (torch 2.15.0)".
std::string version_line();

}  // namespace mw
