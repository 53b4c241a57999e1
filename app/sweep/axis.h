// One axis of a grid: its values, as a script wrote them.
#pragma once

#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

struct AxisValue {
  std::string label;
  Json value;          // of the key, or null
  Json sets;           // { path = value }
  Json over;           // a grid of its own, or null
  bool named = false;  // by the script
};

// Whether it, or what it leads into, is a key of the experiment: "model.layers".
bool is_experiment_key(const std::string& key);

// A list of values or a table of named ones; problems have keys in `path`.
std::vector<AxisValue> read_axis(const std::string& key, const Json& given, const std::string& path,
                                 Problems& problems);

// The axis of a grid that sets this key or what lies in it: "plan"; empty: none does.
std::string axis_that_sets(const Json& over, const std::string& key);

}  // namespace mw
