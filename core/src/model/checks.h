// What the built-in model kinds check of their options.
#pragma once

#include <cstdint>

#include "meshwright/options.h"

namespace mw {

// What a model can hold of what is gone through one by one; widths may be what 32 bits hold.
constexpr std::int64_t most_layers = 1 << 12, most_heads = 1 << 16, most_experts = 1 << 16;

// Checks that hidden is divisible by heads. Returns the width of a head, 0 if there is none.
std::int64_t check_heads(const Values& values, Problems& problems);

}  // namespace mw
