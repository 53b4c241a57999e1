// Names mixes of strategies. A name is Lua code: `plan = NAME` in a script makes the mix.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// Whether the value has a function anywhere inside. If so, its text cannot be read back.
bool holds_function(const Json& value);
// A copy in which a function is known by its code alone. The number of a function says how many
// functions its script had made, so two runs may number one function differently.
Json without_numbers(Json value);
// Writes an option of a strategy: schedule = "zb-h1", layout = { 1, 3 }. A value with a function in
// it is written as its name, or as the function's place: function@script.lua:12.
std::string option_text(const std::string& key, const Json& value);
// Writes a strategy of a plan: dp(4), tp { 8, overlap = true }, sp(). `ways` and `options` may be
// empty.
std::string entry_text(const std::string& name, const std::string& ways,
                       const std::string& options);
// Writes a plan's entry, { plugin = "dp", ways = 4 }, for users to copy into a script: dp(4). A
// function is written as function(…) … end.
std::string entry_text(const Json& entry);
// The name of a mix: dp(4) for one entry, { dp(2), tp(4) } for several, "one rank" for none.
std::string mix_text(const std::vector<std::string>& entries);
// The name of the mix in a script's value: a `plan`, or one entry of a plan. Empty: the value is
// neither.
std::string written_mix(const Json& plan);

}  // namespace mw
