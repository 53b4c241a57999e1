// What an op costs, by what it declares and by what can be seen from its shapes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "meshwright/op.h"

namespace mw {

// One number of a declared cost. `most`: the sums of a plan cannot hold more.
struct Amount {
  const char* name;
  double value, most;
  Amount(const char* n, double v) : name(n), value(v), most(1e30) {}
  Amount(const char* n, std::int64_t v) : Amount(n, static_cast<double>(v)) { most = 0x1p60; }
};

// Throws Error unless each is a number from 0 to its most. `whose`: "layers.0.mine (mine)".
void check_amounts(const std::string& whose, std::initializer_list<Amount> amounts);

// OpType::cost of the piece. Where that declares no FLOPs of a matrix product or an attention, they
// are counted from the shapes: of an attention as if each query saw all keys.
Cost cost_of(const Op& op, Piece piece, const LocalDims& dims, int element);

}  // namespace mw
