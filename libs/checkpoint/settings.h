// What two runs have to have alike for one to go on from the other's checkpoint.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// The key of a hash of the ops that a model's functions recorded.
inline constexpr const char* model_ops = "model_ops";

// "optimizer.lr: 0.001 there, 0.01 here", for every key whose value differs; lists are one value.
// Data whose files have the same in them ("data.content") may have other paths. Checkpoints of
// earlier versions do not say what the files had in them: of those the paths count. Nor do they say
// which functions there were: any function equals theirs.
std::vector<std::string> differences(const Json& there, const Json& here);

// Those differences with which no run can go on: another model, another kind of optimizer.
std::vector<std::string> hard_differences(const Json& there, const Json& here);

}  // namespace mw
