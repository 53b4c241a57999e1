// What two runs have to have alike for one to go on from the other's checkpoint.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// The key of a hash of the ops that a model's functions recorded.
inline constexpr const char* model_ops = "model_ops";

// "optimizer.lr: 0.001 there, 0.01 here", for every key whose value differs; lists are one value.
// Data of equal content ("data.content") may lie at another path. A checkpoint of an earlier
// version has neither the content of its data nor the hashes of its functions: its paths are
// compared, and each of its functions counts as equal to any function.
std::vector<std::string> differences(const Json& there, const Json& here);

// Those differences with which no run can go on: another model, another kind of optimizer.
std::vector<std::string> hard_differences(const Json& there, const Json& here);

}  // namespace mw
