// The cost of an op, from what the op declares and from its shapes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "meshwright/op.h"

namespace mw {

// One number of a declared cost, and the largest value that the sums of a plan can hold.
struct Amount {
  const char* name;
  double value, most;
  Amount(const char* n, double v) : name(n), value(v), most(1e30) {}
  Amount(const char* n, std::int64_t v) : Amount(n, static_cast<double>(v)) { most = 0x1p60; }
};

// Throws Error unless each amount is in [0, most]. `whose`: the op for the message, as
// "layers.0.mine (mine)".
void check_amounts(const std::string& whose, std::initializer_list<Amount> amounts);

// OpType::cost of a piece. If a matrix product or an attention declares no FLOPs, they are counted
// from its shapes; for an attention, as if each query saw all keys.
Cost cost_of(const Op& op, Piece piece, const LocalDims& dims, int element);

}  // namespace mw
