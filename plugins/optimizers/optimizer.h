// What the library's own optimizers share.
#pragma once

#include <vector>

#include "meshwright/optimizer.h"

namespace mw {

// adamw { lr, betas = {0.9, 0.95}, eps = 1e-8, weight_decay = 0.1, clip = nil }: AdamW (Loshchilov
//   and Hutter 2019), the decay on every tensor; bit for bit ATen's fused kernel.
// sgd { lr, momentum = 0, weight_decay = 0, clip = nil }: v = momentum v + (g + weight_decay p),
//   p -= lr v; the first step's v is the gradient. State only with momentum.
// muon { lr, momentum = 0.95, nesterov = true, weight_decay = 0.1, ns_steps = 5,
//   adjust_lr = "original", adamw = { lr, betas, eps }, clip = nil }: for matrices of layers
//   (plan/matrices.h) Muon (Jordan 2024) as torch.optim.Muon has it: v += (1 - momentum) (g - v);
//   d = g + momentum (v - g), or v without nesterov; p *= 1 - lr weight_decay;
//   p -= lr a orthogonalised(d), where a is sqrt(max(1, rows / columns)) ("original") or
//   0.2 sqrt(max(rows, columns)) ("match_rms_adamw"; Liu et al. 2025). For all else AdamW, at a
//   rate that keeps its ratio to Muon's.
extern const Registration adamw_optimizer, sgd_optimizer, muon_optimizer;
std::vector<Registration> built_in_optimizers();

// `stack` (matrices, rows, columns): each matrix with its singular values moved towards 1, by
// `steps` steps of X <- a X + (b X X^T + c (X X^T)^2) X from X / |X| (Frobenius; at least 1e-7),
// with a, b, c = 3.4445, -4.775, 2.0315 (Jordan 2024). In the precision of `stack`, which is
// overwritten and may be what is returned.
at::Tensor orthogonalised(const at::Tensor& stack, int steps);

// The factor that brings gradients of `norm` down to `clip`: min(1, clip / (norm + 1e-6)), 1 if
// clip is 0. The 1e-6 is torch.nn.utils.clip_grad_norm_'s. Not finite if `norm` is not.
double clip_factor(double norm, double clip);

}  // namespace mw
