// Inputs that are nearly right, for runs without libFuzzer: an input with a few things changed. The
// same seed gives the same input everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mw::fuzz {

// Changes one of `inputs`, at least one of which there is, in up to four places: a bit, a byte, a
// cut, a part that comes twice, a part of another input, another number, a bracket.
std::string mutated(const std::vector<std::string>& inputs, std::uint64_t seed);

}  // namespace mw::fuzz
