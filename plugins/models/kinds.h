// The models that are built in, one file each.
#pragma once

#include <vector>

#include "meshwright/model.h"

namespace mw {

extern const Registration llama_model, gpt_model, moe_model, composed_model;

std::vector<Registration> built_in_models();

}  // namespace mw
