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

// Immutable and thread-safe: all ranks share one.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual double lr() const = 0;  // as given; a schedule starts from it
  // Largest norm that gradients may have, over all parameters of all ranks; 0: not clipped. The
  // caller computes the norm and hands the factor to `step`.
  virtual double clip() const = 0;
  virtual std::vector<std::string> state_names() const = 0;
  // Bytes of state for each element of a parameter; `make_state` allocates exactly these.
  std::int64_t bytes_per_element(at::ScalarType dtype) const;
  OptimizerState make_state(const at::Tensor& param) const;  // zeros
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
const std::vector<const OptimizerKind*>& optimizer_kinds();
const OptimizerKind* find_optimizer_kind(const std::string& name);  // nullptr if there is none

const OptimizerKind& adamw_kind();
const OptimizerKind& sgd_kind();

// The factor that brings gradients of `norm` down to `clip`: min(1, clip / (norm + 1e-6)), 1 if
// clip is 0. The 1e-6 is torch.nn.utils.clip_grad_norm_'s. Not finite if `norm` is not.
double clip_factor(double norm, double clip);

}  // namespace mw
