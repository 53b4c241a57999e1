// `--set key=value`: changes to every experiment table of a script, made after the script built it
// and checked like anything else in it.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

struct Setting {
  std::string given;  // as typed: "model.layers=2", or another option, "--stack megatron-core"
  std::string key;    // "model.layers", "plan[2].ways", "plan.2.ways"
  std::string text;   // text after the first "="
  Json value;         // value of the text; null takes the key away
};

// The text without spaces and tabs at its ends.
std::string without_spaces(std::string text);

// Splits "key=value"; the value is still to be read. Throws Error (options) for another form.
Setting parse_setting(const std::string& given);

// Reads a value without Lua: numbers, true, false, nil, and words. False if only Lua can tell:
// tables, calls, quoted text, sums.
bool read_plainly(const std::string& text, Json& value);

struct AppliedSetting {
  std::string path;   // as problems name it: "plan[2].ways"
  std::string made;   // `path`, or the outermost table made for it: "optimzer"
  std::string text;   // "plan[2].ways = 4 (was 2)"
  std::string place;  // place_of_setting
};

// The place of a setting, for messages: "--set model.layers=2".
std::string place_of_setting(const std::string& given);

// The keys of these settings whose values in two experiments differ, each once.
std::vector<std::string> changed_keys(const std::vector<Setting>& settings, const Json& before,
                                      const Json& after);

// Sets the key in `experiment`. "observers[+]" adds an entry at the end of a list. A named cluster
// or stack that is changed lists the key in `changed`. Throws Error (options) if the path leads
// through something that is no table or past the end of a list. Whether the key exists and the
// value is right is checked later, by the options.
AppliedSetting apply_setting(const Setting& setting, Json& experiment);

}  // namespace mw
