// What an optimizer is: the options that a script gives, what it keeps beside each element of a
// parameter, and the ops that it adds to the update segment of a program for each bucket.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/registration.h"

namespace mw {

// What an optimizer remembers of a flat parameter: tensors of its shape, dtype and device, in the
// order of UpdateRule::states, and of each of its matrices, in that of UpdateRule::of_matrix.
struct OptimizerState {
  std::vector<at::Tensor> tensors, of_matrix;
};

// What an op of the update works on, on one rank: flat tensors of one dtype (the
// optimizer's), updated in place.
struct UpdateCall {
  at::Tensor parameter;  // of apply alone
  // The gradient of the parameter's elements, or what the ops before made of it. What it holds
  // afterwards is unspecified but for that which the next op reads.
  at::Tensor gradient;
  OptimizerState state;
  double lr = 0;
  std::int64_t step = 0;               // counts from 0
  double grad_scale = 1;               // the gradient counts times this (clipping)
  std::int64_t rows = 0, columns = 0;  // of each matrix, where the rule is for matrices
};

class UpdateOp {
 public:
  virtual ~UpdateOp() = default;
  virtual std::string name() const = 0;  // "adamw", "momentum"
};

// Treats one element at a time, so that it runs over any part of the parameters. How they are cut
// and joined matters to the last bit only: ATen's kernels round the few elements after the last
// whole vector (16 fp32, 8 fp64) differently. Cuts at such multiples change nothing.
class ElementOp : public UpdateOp {
 public:
  virtual void run(const UpdateCall& call) const = 0;
};

// Makes of the directions of whole matrices what is then applied to them.
class MatrixOp : public UpdateOp {
 public:
  struct Cost {
    double flops = 0;
    int gemms = 0;
    bool in_place = true;        // the result lies in the operand's own storage
    std::int64_t workspace = 0;  // most bytes at a time that it allocates beside operand and result
  };
  // `stack` (matrices, rows, columns) is overwritten, and `kept` is brought up to date: a tensor
  // for each of UpdateRule::of_matrix, (matrices, its rows, its columns).
  virtual at::Tensor run(const at::Tensor& stack, const std::vector<at::Tensor>& kept) const = 0;
  virtual Cost cost(std::int64_t matrices, std::int64_t rows, std::int64_t columns,
                    int element) const = 0;
};

// A tensor that is kept for each matrix, zero at first, and that a MatrixOp reads and writes. It
// lies whole on every rank that runs the op on the matrix.
struct MatrixState {
  enum class Side : std::uint8_t { one, rows, columns };  // 1, or the matrix' own
  std::string name;
  Side rows = Side::rows, columns = Side::columns;

  // The tensor's shape where the matrix is m by n.
  std::array<std::int64_t, 2> shape(std::int64_t m, std::int64_t n) const {
    const auto size = [&](Side s) { return s == Side::one ? 1 : s == Side::rows ? m : n; };
    return {size(rows), size(columns)};
  }
  std::int64_t elements(std::int64_t m, std::int64_t n) const {
    return shape(m, n)[0] * shape(m, n)[1];
  }
};

// How the parameters of a bucket are updated. The ops belong to the optimizer.
struct UpdateRule {
  std::vector<std::string> states;  // kept for each element, zero at first
  // What makes directions of gradients, and what is made of each matrix of directions, where the
  // rule is for matrices. Null where `apply` reads the gradient itself.
  const ElementOp* direction = nullptr;
  const MatrixOp* whole = nullptr;
  const ElementOp* apply = nullptr;
  std::vector<MatrixState> of_matrix = {};  // kept by `whole`
};

// Immutable and thread-safe: all ranks share one. Its constructor checks what options alone cannot,
// and throws Error (options).
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual double lr() const = 0;  // as given; a schedule starts from it
  // Largest norm that gradients may have, over all parameters of all ranks; 0: not clipped.
  virtual double clip() const = 0;
  // Whether matrices of layers have a rule of their own, and the rule of these or of all else.
  // Matrices are the weights of linears and experts inside of layers, the router's too.
  virtual bool takes_matrices() const { return false; }
  virtual UpdateRule rule(bool matrices) const = 0;

  // The update by itself, beside any program: zeros for `param`, and one step of all but matrices.
  // `param` and `grad`: contiguous, one shape, fp32 or fp64.
  OptimizerState make_state(const at::Tensor& param, bool matrices = false) const {
    OptimizerState state;
    for (std::size_t i = 0, n = rule(matrices).states.size(); i < n; ++i)
      state.tensors.push_back(at::zeros_like(param, at::MemoryFormat::Contiguous));
    return state;
  }
  void step(const at::Tensor& param, const at::Tensor& grad, OptimizerState& state, double lr,
            std::int64_t step_index, double grad_scale = 1.0) const {
    if (param.numel() > 0) rule(false).apply->run({param, grad, state, lr, step_index, grad_scale});
  }
};

// The factor that brings gradients of `norm` down to `clip`: min(1, clip / (norm + 1e-6)), 1 if
// clip is 0. The 1e-6 is torch.nn.utils.clip_grad_norm_'s. Not finite if `norm` is not.
inline double clip_factor(double norm, double clip) {
  if (clip == 0) return 1.0;
  const double factor = clip / (norm + 1e-6);
  return factor > 1.0 ? 1.0 : factor;  // not std::min: a NaN must come through
}

template <>
struct KindOf<Optimizer> {
  static constexpr Kind kind = Kind::optimizer;
  using Make = std::unique_ptr<Optimizer>(const Values& values);
};
template <class Class>
constexpr Registration optimizer(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Optimizer, Class>(name, doc);
}

}  // namespace mw
