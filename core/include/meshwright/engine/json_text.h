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
#pragma once

#include <string>

#include "meshwright/error.h"
#include "meshwright/json.h"
#include "meshwright/json_text.h"

namespace mw {

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
// "4", "\"four\"", "true", "nil", "a table", "a list of 3", "a function".
std::string describe(const Json& value);
// As a script has it: 4, "four", true, { 1, 2 }, { name = 1 }; functions as "function(…) … end".
std::string lua_text(const Json& value);
// An entry of a plan as a script has it: dp(4), tp { 8, overlap = true }, sp().
std::string entry_text(const Json& entry);
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

}  // namespace mw
