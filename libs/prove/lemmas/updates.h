// What is taken for granted of an optimizer: what treats elements treats each by itself, and what
// treats matrices each matrix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/optimizer.h"

namespace mw::lemmas {

// What an update works on: parameter, gradient and states, in float64, drawn at random. States may
// be averages of squares, so they are positive. Copies are deep.
struct UpdateOperands {
  std::vector<at::Tensor> tensors;

  UpdateOperands(std::int64_t count, std::size_t states, std::uint64_t seed);
  UpdateOperands(const UpdateOperands& other);
  UpdateOperands& operator=(const UpdateOperands&) = delete;
  // The call has elements [from, to), or all of them if `to` is below 0.
  UpdateCall call(std::int64_t step, std::int64_t from = 0, std::int64_t to = -1) const;
};

// The size of the matrices that an update of elements is told of, where its rule is for matrices.
struct MatrixSize {
  std::int64_t rows = 0, columns = 0;
};

// What is wrong with an op that treats elements; empty: nothing. Elements in another order must
// give the same in that order, and two parts of them as all at once, to 1e-12 of the largest, in
// each step. `direction`: what it leaves in the gradient is read by the next op.
std::string crosses_elements(const ElementOp& op, std::size_t states, std::int64_t elements,
                             bool direction, const MatrixSize& size);

// The same for an op that treats matrices: each matrix alone must give what it gives in a stack.
std::string crosses_matrices(const UpdateRule& rule, std::int64_t matrices, const MatrixSize& size);

// What is kept of so many matrices before the first step, in float64.
std::vector<at::Tensor> kept_of(const UpdateRule& rule, std::int64_t matrices,
                                const MatrixSize& size);

// A sentence for each fault of the rule's ops.
std::vector<std::string> update_faults(const UpdateRule& rule);

}  // namespace mw::lemmas
