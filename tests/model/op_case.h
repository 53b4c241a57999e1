// One op alone: makes it, runs its pieces, and compares with a reference that torch differentiates.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "meshwright/op.h"
#include "prove/lemmas/op_case.h"

namespace mw::test {

using lemmas::Into;
using lemmas::Tensors;
using Gradients = lemmas::Made;
using Reference = std::function<Tensors(const Tensors&)>;

struct OpCase : lemmas::OpCase {
  std::vector<bool> wide;  // inputs that are in fp32 where check_memory computes in bf16
  Tensors expert_loads;    // input i's gradient where it is no derivative (Value::counts)

  OpCase(std::shared_ptr<const OpType> type, std::vector<Dims> inputs, std::vector<Dims> outputs,
         const std::map<std::string, std::int64_t>& sizes);
  // This rank holds [offset, offset + size) of `global`.
  void cut(const char* dim, std::int64_t offset, std::int64_t size, std::int64_t global);
  // or these ranges of it, as they lie.
  void cut(const char* dim, std::vector<Range> runs, std::int64_t global);
  // Tensors over `dims` are rows, so many of each group.
  void sparse(Dims dims, std::vector<std::int64_t> rows);
  std::vector<std::int64_t> shape(const Dims& dims) const;
  const Sparse& sparse() const { return sparse_; }
  // Input i: normal numbers, which get a gradient; or indices below `limit`, which get none.
  void real(std::size_t i);
  void index(std::size_t i, std::int64_t limit);
  void no_grad(std::size_t i) { wants[i] = false; }

 private:
  Sparse sparse_;
};

// |a - b| over the largest of |b|, or over 1 where that is less: operands here are of that order,
// and what is zero but for their rounding has no relative error.
double error(const at::Tensor& a, const at::Tensor& b);

// Runs forward, then backward (or dgrad and wgrad), and requires that gradients lie in the tensors
// that were given for them (prove/lemmas/op_case.h).
Gradients run(const OpCase& c, const Tensors& grad_outputs, Into into, const Tensors& before = {});

// Forward and every gradient against the reference and its autograd, to 1e-12, in each of the three
// ways to take gradients; in place and over saved tensors where the traits allow it.
void check_op(const OpCase& c, const Reference& reference);

// What an op does wrong whose gradients lie on the inputs that backward reads: a line for each set
// of wanted gradients and type of reals in which they are not, bit for bit, those in fresh tensors.
std::vector<std::string> faults_over_saved(const OpCase& c);

// With its real inputs in a type (those that are `wide` in fp32 where that is one of 2 bytes).
OpCase in_type(OpCase c, at::ScalarType type);

// Gradients by torch of the reference's outputs; undefined where none is wanted.
Tensors reference_gradients(const OpCase& c, const Reference& reference, const Tensors& seeds);

// Compares what the allocator saw with what traits and cost declare, for the forward piece and each
// backward piece, in each way to take a product's result: to the byte, but the workspace of half
// types, and of layer_norm, within 2 % or 4 KiB. A workspace that is left out is measured
// (engine/scratch.h), but of rows. With one thread, and with two.
void check_memory(const OpCase& c, at::ScalarType type);

}  // namespace mw::test
