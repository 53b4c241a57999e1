// Names mixes of strategies, in one way everywhere: a name is Lua, and `plan = NAME` in a script is
// the mix of this name.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// Whether a function is anywhere in the value. Then no text of the value can be read back.
bool holds_function(const Json& value);
// An option of a strategy: schedule = "zb-h1", layout = { 1, 3 }. A value with a function in it is
// written as its name, or as the function's place: function@script.lua:12.
std::string option_text(const std::string& key, const Json& value);
// A strategy of a plan: dp(4), tp { 8, overlap = true }, sp(). `ways` and `options` may be empty.
std::string entry_text(const std::string& name, const std::string& ways,
                       const std::string& options);
// Writes a plan's entry, { plugin = "dp", ways = 4 }, for users to copy into a script: dp(4). A
// function is written as function(…) … end.
std::string entry_text(const Json& entry);
// dp(4) of one entry, { dp(2), tp(4) } of several, and of none "one rank".
std::string mix_text(const std::vector<std::string>& entries);
// The name of the mix that a script's `plan`, or one entry of a plan, says. Empty: the value is
// neither.
std::string written_mix(const Json& plan);

}  // namespace mw
