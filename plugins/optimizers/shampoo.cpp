// Shampoo (Gupta, Koren and Singer 2018, arXiv:1802.09568) for the matrices of layers, and AdaGrad
// (Duchi et al. 2011) for all else, which is Shampoo with its factors' diagonals alone.
//
// shampoo { lr, momentum = 0.9, eps = 1e-4, weight_decay = 0, clip = nil } keeps of a matrix of m
//   by n an average of gradients M and the factors L (m by m) and R (n by n), and does with
//   gradient G
//   M += (1 - momentum) (G - M); L += M M^T; R += M^T M;
//   P = P (1 - lr weight_decay) - lr (L + eps I)^(-1/4) M (R + eps I)^(-1/4).
//   With momentum 0 this is algorithm 1 of the paper.
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "meshwright/decompositions.h"
#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"

namespace mw {

namespace {

class ShampooAverage final : public ElementOp {
 public:
  explicit ShampooAverage(double decay) : decay_(decay) {}
  std::string name() const override { return "momentum"; }
  void run(const UpdateCall& call) const override {
    if (call.grad_scale != 1.0) call.gradient.mul_(call.grad_scale);
    call.state.tensors.front().lerp_(call.gradient, 1 - decay_);
    call.gradient.copy_(call.state.tensors.front());
  }

 private:
  double decay_;
};

class Precondition final : public MatrixOp {
 public:
  explicit Precondition(double eps) : eps_(eps) {}
  std::string name() const override { return "precondition"; }
  at::Tensor run(const at::Tensor& stack, const std::vector<at::Tensor>& kept) const override {
    if (stack.numel() == 0) return stack;
    const at::Tensor turned = stack.transpose(1, 2);
    kept[0].baddbmm_(stack, turned);
    kept[1].baddbmm_(turned, stack);
    stack.copy_(at::bmm(root(kept[0]), stack));
    stack.copy_(at::bmm(stack, root(kept[1])));
    return stack;
  }
  // Eigenvectors by reduction to a tridiagonal matrix and divide and conquer take about 9 n^3, and
  // the reduction goes column by column, each of which takes a few kernels. That is most of the
  // time on a GPU: PyTorch's issue 174674 has 500 matrices of 100 columns in 914 ms on one, which
  // is 18 us a column.
  Cost cost(std::int64_t matrices, std::int64_t rows, std::int64_t columns,
            int element) const override {
    const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
    Cost cost;
    cost.flops =
        static_cast<double>(matrices) * (4 * m * n * (m + n) + 11 * (m * m * m + n * n * n));
    constexpr int kernels = 5;  // kernels for a column
    cost.gemms = static_cast<int>(8 + kernels * matrices * (rows + columns));
    for (const std::int64_t k : {rows, columns}) {
      // The largest of: eigenvectors and LAPACK's scratch; eigenvectors, scaled eigenvectors and
      // the root; the root and a product.
      const std::int64_t squares = matrices * k * k, vectors = squares + matrices * k;
      cost.workspace = std::max(
          {cost.workspace, element * vectors + worked_in(matrices, k, element),
           element * (vectors + 2 * squares), element * (squares + matrices * rows * columns)});
    }
    return cost;
  }

 private:
  // The bytes that LAPACK asks for at least, beside eigenvalues and eigenvectors: real and integer
  // scratch, and a status of each matrix.
  static std::int64_t worked_in(std::int64_t matrices, std::int64_t k, int element) {
    return element * (1 + 6 * k + 2 * k * k) + 4 * (3 + 5 * k + matrices);
  }

  // (factor + eps I)^(-1/4). A factor is positive semidefinite: only rounding makes eigenvalues
  // negative.
  at::Tensor root(const at::Tensor& factor) const {
    const auto [values, vectors] = eigh(factor);
    values.clamp_min_(0).add_(eps_).pow_(-0.25);
    return at::bmm(vectors * values.unsqueeze(1), vectors.transpose(1, 2));
  }
  double eps_;
};

class ShampooApply final : public ElementOp {
 public:
  explicit ShampooApply(double weight_decay) : weight_decay_(weight_decay) {}
  std::string name() const override { return "apply"; }
  void run(const UpdateCall& call) const override {
    call.parameter.mul_(1 - call.lr * weight_decay_).add_(call.gradient, -call.lr);
  }

 private:
  double weight_decay_;
};

class AdaGrad final : public ElementOp {
 public:
  AdaGrad(double eps, double weight_decay) : eps_(eps), weight_decay_(weight_decay) {}
  std::string name() const override { return "adagrad"; }
  void run(const UpdateCall& call) const override {
    const at::Tensor &grad = call.gradient, &sum = call.state.tensors.front();
    if (call.grad_scale != 1.0) grad.mul_(call.grad_scale);
    sum.addcmul_(grad, grad);
    // elements at a time, so that the roots take little memory
    constexpr std::int64_t at_a_time = 1 << 12;
    call.parameter.mul_(1 - call.lr * weight_decay_);
    for (std::int64_t k = 0; k < sum.numel(); k += at_a_time) {
      const std::int64_t count = std::min(at_a_time, sum.numel() - k);
      call.parameter.narrow(0, k, count)
          .addcdiv_(grad.narrow(0, k, count), sum.narrow(0, k, count).add(eps_).sqrt_(), -call.lr);
    }
  }

 private:
  double eps_, weight_decay_;
};

class Shampoo final : public Optimizer {
 public:
  static Options options() {
    return Options()
        .number("lr", "learning rate; a schedule starts from it")
        .at_least(0)
        .number("momentum", "decay of the running average of gradients of matrices")
        .fallback(0.9)
        .range(0, 0.9999)
        .number("eps", "added to the factors' eigenvalues, and to AdaGrad's sums")
        .fallback(1e-4)
        .at_least(1e-12)
        .number("weight_decay", "decoupled decay, on every tensor")
        .fallback(0.0)
        .at_least(0)
        .number("clip", "largest norm of all gradients; longer ones are scaled down to it")
        .optional()
        .at_least(0);
  }
  explicit Shampoo(const Values& values)
      : lr_(values.number("lr")),
        clip_(values.has("clip") ? values.number("clip") : 0),
        average_(values.number("momentum")),
        precondition_(values.number("eps")),
        apply_(values.number("weight_decay")),
        others_(values.number("eps"), values.number("weight_decay")) {}
  double lr() const override { return lr_; }
  double clip() const override { return clip_; }
  int groups() const override { return 2; }
  std::vector<int> groups_of(const std::vector<ParameterFacts>& parameters) const override {
    return matrices_apart(parameters);
  }
  UpdateRule rule(int group) const override {
    if (group == 0) return {.states = {"sum"}, .apply = &others_};
    using Side = MatrixState::Side;
    return {{"momentum"},
            &average_,
            &precondition_,
            &apply_,
            {{"left", Side::rows, Side::rows}, {"right", Side::columns, Side::columns}}};
  }

 private:
  double lr_, clip_;
  const ShampooAverage average_;
  const Precondition precondition_;
  const ShampooApply apply_;
  const AdaGrad others_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(mw::optimizer<Shampoo>(
    "shampoo", "Shampoo for the matrices of layers, by two factors each; AdaGrad for all else."));

}  // namespace mw
