// Optimizers over flat tensors. A rank's parameters (or its slice of them) lie in a few flat 1-D
// tensors; an optimizer keeps state beside each and updates it in place, one element at a time. How
// parameters are cut and joined matters to the last bit only: ATen's kernels round the few elements
// after the last whole vector (16 fp32, 8 fp64) differently. Cuts at such multiples change nothing.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/options.h"

namespace mw {

// What an optimizer remembers of one flat parameter: tensors of its shape, dtype and device, in an
// order that is the optimizer's own, named so by Optimizer::state_names.
struct OptimizerState {
  std::vector<at::Tensor> tensors;
};

// The update of matrices that is orthogonalised: momentum element by element, then a step for whole matrices.
class MatrixOptimizer {
 public:
  virtual ~MatrixOptimizer() = default;
  virtual int ns_steps() const = 0;  // of Newton-Schulz
  virtual std::vector<std::string> matrix_state_names() const = 0;
  // Turns `grad` (of any part of the parameters, flat) into the direction of the update, in place.
  virtual void direct(const at::Tensor& grad, OptimizerState& state, double grad_scale) const = 0;
  // The parameter's next value, in place; `turn`: what orthogonalised() made of its direction. Both of any
  // part of a parameter of matrices of `rows` by `columns`.
  virtual void step(const at::Tensor& param, const at::Tensor& turn, double lr, std::int64_t rows,
                    std::int64_t columns) const = 0;
};

// Immutable and thread-safe: all ranks share one.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual double lr() const = 0;  // as given; a schedule starts from it
  // Largest norm that gradients may have, over all parameters of all ranks; 0: not clipped. The
  // caller computes the norm and hands the factor to `step`.
  virtual double clip() const = 0;
  virtual std::vector<std::string> state_names() const = 0;
  // What it does with the matrices of layers if it treats them apart; null: as all else.
  virtual const MatrixOptimizer* matrices() const { return nullptr; }
  // Bytes of state for each element of a parameter; `make_state` allocates exactly these.
  std::int64_t bytes_per_element(at::ScalarType dtype, bool matrix = false) const;
  OptimizerState make_state(const at::Tensor& param, bool matrix = false) const;  // zeros
  // Updates `param` and `state` in place. `param` and `grad`: contiguous, one shape, fp32 or fp64.
  // `step_index` counts from 0. `grad_scale` multiplies the gradient first (clipping). What `grad`
  // holds afterwards is unspecified.
  void step(const at::Tensor& param, const at::Tensor& grad, OptimizerState& state, double lr,
            std::int64_t step_index, double grad_scale = 1.0) const;

 protected:
  virtual void update(const at::Tensor& param, const at::Tensor& grad, OptimizerState& state,
                      double lr, std::int64_t step_index) const = 0;
};

class OptimizerKind {
 public:
  virtual ~OptimizerKind() = default;
  virtual std::string name() const = 0;  // "adamw": the function in Lua
  virtual std::string doc() const = 0;
  virtual const Options& options() const = 0;
  // Checks what options alone cannot; messages start with `path`. Null if there are problems.
  virtual std::shared_ptr<const Optimizer> make(const Values& values, const std::string& path,
                                                Problems& problems) const = 0;
};

// adamw { lr, betas = {0.9, 0.95}, eps = 1e-8, weight_decay = 0.1, clip = nil }: AdamW (Loshchilov
//   and Hutter 2019), the decay on every tensor; bit for bit ATen's fused kernel.
// sgd { lr, momentum = 0, weight_decay = 0, clip = nil }: v = momentum v + (g + weight_decay p),
//   p -= lr v; the first step's v is the gradient. State only with momentum.
// muon { lr, momentum = 0.95, nesterov = true, weight_decay = 0.1, ns_steps = 5, adjust_lr = "original",
//   adamw = { lr, betas, eps }, clip = nil }: for matrices of layers (plan/matrices.h) Muon (Jordan 2024) as
//   torch.optim.Muon has it: v += (1 - momentum) (g - v); d = g + momentum (v - g), or v without nesterov;
//   p *= 1 - lr weight_decay; p -= lr a orthogonalised(d), where a is sqrt(max(1, rows / columns)) ("original")
//   or 0.2 sqrt(max(rows, columns)) ("match_rms_adamw"; Liu et al. 2025). For all else AdamW, at a rate that
//   keeps its ratio to Muon's.
const std::vector<const OptimizerKind*>& optimizer_kinds();
const OptimizerKind* find_optimizer_kind(const std::string& name);  // nullptr if there is none

const OptimizerKind& adamw_kind();
const OptimizerKind& sgd_kind();
const OptimizerKind& muon_kind();

// `stack` (matrices, rows, columns): each matrix with its singular values moved towards 1, by `steps` steps of
// X <- a X + (b X X^T + c (X X^T)^2) X from X / |X| (Frobenius; at least 1e-7), with a, b, c = 3.4445, -4.775,
// 2.0315 (Jordan 2024). In the precision of `stack`, which is overwritten and may be what is returned.
at::Tensor orthogonalised(const at::Tensor& stack, int steps);

// The factor that brings gradients of `norm` down to `clip`: min(1, clip / (norm + 1e-6)), 1 if
// clip is 0. The 1e-6 is torch.nn.utils.clip_grad_norm_'s. Not finite if `norm` is not.
double clip_factor(double norm, double clip);

}  // namespace mw
