// What is taken for granted of every op, however it is cut: backward is the derivative of forward,
// and gradients are written and added where the call says.
#pragma once

#include <vector>

#include "check/lemma_parts.h"

namespace mw::lemmas {

// Whether an op says that its gradient is meant to be no derivative (StraightThrough).
bool is_straight_through(const Op& op);

// Holds each gradient against differences of forward along a random direction, to 1e-6 of the
// gradient's norm. Where one does not agree, closer points are tried: one bend of forward between
// two points is no fault. Not of counts that no loss moves (Value::counts).
std::vector<Fault> check_adjoint(WholeOp& whole);

// Holds what OpCall promises: a gradient is written into the tensor that is given for it, or added
// to what is there; one that overwrites a saved input is the same; forward in place is the same,
// in the input's own storage; a result without a gradient counts as one of zeros; nothing that a
// kernel only reads is changed, and what the traits say that backward does not read, it does not.
std::vector<Fault> check_contract(WholeOp& whole, const Bound& bound);

}  // namespace mw::lemmas
