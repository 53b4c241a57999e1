// What two runs have to have alike for one to go on from the other's checkpoint.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// "optimizer.lr: 0.001 there, 0.01 here", for every key whose value differs; lists are one value.
// Data whose files have the same in them ("data.content") may have other paths. Checkpoints of
// earlier versions do not say what the files had in them: of those the paths count.
std::vector<std::string> differences(const Json& there, const Json& here);

// Those differences with which no run can go on: another model, another kind of optimizer.
std::vector<std::string> hard_differences(const Json& there, const Json& here);

}  // namespace mw
