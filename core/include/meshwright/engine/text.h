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
// The text with every byte that is no part of a UTF-8 character, and every control character but
// "\n" and "\t", as "\xff": what others wrote, fit for a terminal and for JSON.
std::string readable(std::string_view text);
// The same with "\n" and "\t" too, so that it stays on its line: a name, a cell of a table.
std::string readable_line(std::string_view text);
// "did you mean \"ways\"?"; empty if no candidate is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);
// The same; if no candidate is near, "there are: a, b, c", with the first twelve of them.
std::string nearest_or_all(const std::string& word, const std::vector<std::string>& candidates);
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

// What the hidden keys of script tables mean, and how a value is named to its author.
//
// Keys that start with "$" are no options; readers skip them:
//   "$function"  a Lua function: {"$function": n, "$code": hex, "$plain": hex, "$defined":
//                "script.lua:12"}; the number is that of a process, the code tells functions
//                apart in all of them, with what they close over ("$plain": tables left out)
//   "$value"     the unnamed values of a table with names too: mw.text { "file", order = … }; one
//                value stands as it is, several as a list
//   "$at"        "script.lua:12", where the table was made
//   "$strategy"  of a plan's entry: the table of mw.strategy that it is made of.
//                Keys that the entry lacks are looked for there (place_of)
inline constexpr const char* function_key = "$function";
inline constexpr const char* code_key = "$code";
inline constexpr const char* plain_code_key = "$plain";
inline constexpr const char* defined_key = "$defined";
inline constexpr const char* unnamed_key = "$value";
inline constexpr const char* place_key = "$at";
inline constexpr const char* strategy_key = "$strategy";
// In an experiment: the keys to which --set and other options gave other values than its script.
inline constexpr const char* changed_key = "$changed";

bool is_function(const Json& value);
// "4", "\"four\"", "true", "nil", "a table", "a list of 3", "a function", "the strategy dp(2)".
std::string describe(const Json& value);
// As a script has it: 4, "four", true, { 1, 2 }, { name = 1 }; functions as "function(…) … end".
std::string lua_text(const Json& value);
// Whether the key path is that of the table, or leads into it.
bool lies_in(const std::string& key, const std::string& table);
// The path of a key of the table: key_in("plan[2]", "ways") is "plan[2].ways". What lies in the
// table already stays, and what is in no table.
std::string key_in(const std::string& table, const std::string& key);
// "script.lua:12" of the table nearest to the key path ("plan[2].ways") inside `root`; empty if
// none says. The path counts lists from 1, as Lua does.
std::string place_of(const Json& root, const std::string& path);
// { stage =, code =, key =, message =, hint =, file =, line = }, the last two null where no
// script's line is known.
Json json_of(const Problem& problem);
// `value` without any hidden key but functions, at any depth: what the user wrote. Functions lose
// where they were written.
Json without_hidden(const Json& value);

// The version of this build, for people: "meshwright 0.1.0 (torch 2.11.0)".
std::string version_line();

}  // namespace mw
