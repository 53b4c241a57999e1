// The one way in which a mix of strategies is named: as a script has it, so that `plan = NAME` is
// that mix.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// Whether a function is anywhere in it, so that no text gives it back.
bool holds_function(const Json& value);
// An option of a strategy: schedule = "zb-h1", layout = { 1, 3 }. What has a function in it
// stands there by its name, or by its place: function@script.lua:12.
std::string option_text(const std::string& key, const Json& value);
// A strategy of a plan: dp(4), tp { 8, overlap = true }, sp(). `ways` and `options` may be empty.
std::string entry_text(const std::string& name, const std::string& ways,
                       const std::string& options);
// dp(4) of one entry, { dp(2), tp(4) } of several, and of none "one rank".
std::string mix_text(const std::vector<std::string>& entries);
// The mix that an experiment's `plan`, or one entry of it, names, by what is written there. Empty:
// it is neither.
std::string written_mix(const Json& plan);

}  // namespace mw
