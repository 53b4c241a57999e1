// What an op costs, by what it declares and by what can be seen from its shapes.
#pragma once

#include "meshwright/op.h"

namespace mw {

// OpType::cost of the piece. Where that declares no FLOPs of a matrix product or an attention, they
// are counted from the shapes: of an attention as if each query saw all keys.
Cost cost_of(const Op& op, Piece piece, const LocalDims& dims, int element);

}  // namespace mw
