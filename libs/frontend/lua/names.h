// Names that a script can write: Lua's keywords, and what is an identifier of Lua.
#pragma once

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>

namespace mw {

inline constexpr const char* lua_keywords[] = {
    "and",      "break",  "do",   "else", "elseif", "end",  "false", "for",
    "function", "goto",   "if",   "in",   "local",  "nil",  "not",   "or",
    "repeat",   "return", "then", "true", "until",  "while"};

// Whether a script can write `text = value` and `text { … }`.
inline bool is_lua_name(std::string_view text) {
  const auto good = [](unsigned char c) { return c < 0x80 && (std::isalnum(c) != 0 || c == '_'); };
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0 &&
         std::all_of(text.begin(), text.end(), good) &&
         std::find(std::begin(lua_keywords), std::end(lua_keywords), text) ==
             std::end(lua_keywords);
}

}  // namespace mw
