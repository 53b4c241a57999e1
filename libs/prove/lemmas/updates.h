// Checks of what a proof takes for granted about an optimizer: its element ops treat each element
// by itself, and its matrix ops each matrix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/optimizer.h"

namespace mw::lemmas {

// What an update works on: parameter, gradient and states, in float64, drawn at random. States may
// be averages of squares, so they are positive. Copies are deep.
struct UpdateOperands {
  std::vector<at::Tensor> tensors;  // after the states, the sums, then the states of matrices
  std::size_t states, sums;

  UpdateOperands(std::int64_t count, const UpdateRule& rule, std::uint64_t seed);
  UpdateOperands(const UpdateOperands& other);
  UpdateOperands& operator=(const UpdateOperands&) = delete;
  // An UpdateCall on elements [from, to), or on all of them if `to` is below 0.
  UpdateCall call(std::int64_t step, std::int64_t from = 0, std::int64_t to = -1) const;
};

// The size of the matrices that a rule is for, which element ops get in UpdateCall; 0: no matrices.
struct MatrixSize {
  std::int64_t rows = 0, columns = 0;
};

// How an element op lets an element depend on others; empty: it does not. Permuted elements must
// give the permuted result, and two halves the result of all at once, to 1e-12 of the largest
// number, in each of several steps. `rule`: says what states and sums the op gets. `direction`:
// compares the gradient too, which the next op reads.
std::string crosses_elements(const ElementOp& op, const UpdateRule& rule, std::int64_t elements,
                             bool direction, const MatrixSize& size);

// How a rule's matrix op lets a matrix depend on others; empty: it does not. Each matrix alone must
// give what it gives in a stack.
std::string crosses_matrices(const UpdateRule& rule, std::int64_t matrices, const MatrixSize& size);

// How a matrix op's steps by Gram matrices make something else of parts than it makes of whole
// matrices; empty: they do not.
std::string crosses_shards(const MatrixOp& op, std::int64_t matrices, const MatrixSize& size);

// How UpdateTerms::keep lets a matrix depend on others; empty: it does not.
std::string keeps_across(const UpdateRule& rule, std::int64_t matrices, const MatrixSize& size);

// A rule's states of a stack of matrices (UpdateRule::of_matrix) before the first step, in float64.
std::vector<at::Tensor> kept_of(const UpdateRule& rule, std::int64_t matrices,
                                const MatrixSize& size);

// A sentence for each fault of the rule's ops.
std::vector<std::string> update_faults(const UpdateRule& rule);

}  // namespace mw::lemmas
