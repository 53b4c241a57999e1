// Short texts for the values of a grid, and file names made of them.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// The text of a value: "3", "full", "llama(layers=2, …)", or a plan's mix (engine/mix.h).
std::string value_label(const Json& value);
// Names for the values of one axis: tables of one kind are told apart by what differs. Equal texts
// get a number behind them, so that no two are alike.
std::vector<std::string> value_labels(const std::vector<Json>& values);
// A text as part of a file's name: letters, digits and "-" alone, at most 48.
std::string file_label(const std::string& text);

}  // namespace mw
