// Compares the settings of two runs, which must agree if one is to resume from the other's
// checkpoint.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// A key of the settings: the hash of the ops that a model's functions recorded.
inline constexpr const char* model_ops = "model_ops";

// A line for every key whose value differs, "optimizer.lr: 0.001 there, 0.01 here"; a list is one
// value. Data of equal content ("data.content") may lie at another path. A checkpoint of an earlier
// version has neither the content of its data nor the hashes of its functions: then paths are
// compared, and each of its functions counts as equal to any function.
std::vector<std::string> differences(const Json& there, const Json& here);

// The differences with which no run can resume: another model, another kind of optimizer.
std::vector<std::string> hard_differences(const Json& there, const Json& here);

}  // namespace mw
