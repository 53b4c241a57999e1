// One axis of a grid: its values, as a script wrote them.
#pragma once

#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

struct AxisValue {
  std::string label;
  Json value;          // value of the axis' key; null: the axis has several keys
  Json sets;           // what it sets in the experiment: { path = value }
  Json over;           // a grid of its own, or null
  bool named = false;  // the script gave the label
};

// Whether the key, "model.layers", is a key of the experiment or lies in one.
bool is_experiment_key(const std::string& key);

// Reads an axis: a list of values, or a table of named ones. Keys of problems begin with `path`.
std::vector<AxisValue> read_axis(const std::string& key, const Json& given, const std::string& path,
                                 Problems& problems);

// The axis of a grid that sets this key, a key in it, or a table around it: "plan"; empty: none.
std::string axis_that_sets(const Json& over, const std::string& key);

}  // namespace mw
