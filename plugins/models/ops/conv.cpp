// A causal convolution of each channel along the sequence, as Mamba and its kin have before their
// recurrence [Gu and Dao 2023, "Mamba", section 3.4].
#include "kernel.h"
#include "meshwright/autograd_op.h"
#include "scan.h"
#include "token_order.h"

namespace mw {
namespace {

using namespace kernel;

class Conv final : public AutogradOp {
 public:
  std::string kind() const override { return "conv"; }

  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const TokenOrder order(dims.at(op.inputs[0].dims[1]), inputs[0]);
    const at::ScalarType type = wide(inputs[0]);
    const at::Tensor x = order.sorted(inputs[0]).to(type);
    const std::int64_t tokens = x.size(1), kernel = inputs[1].size(-1);
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape[0] = shape[1] = 1;
    std::vector<std::int64_t> zeros(2 * shape.size() - 2, 0);  // of the last dim first
    zeros[zeros.size() - 2] = kernel - 1;
    const at::Tensor seen = at::constant_pad_nd(x, zeros, 0);
    const at::Tensor weight = inputs[1].to(type);
    at::Tensor y;
    if (inputs.size() > 2) y = inputs[2].to(type).view(shape);
    for (std::int64_t tap = 0; tap < kernel; ++tap) {
      const at::Tensor part = seen.narrow(1, tap, tokens),
                       factor = weight.select(-1, tap).reshape(shape);
      y = y.defined() ? at::addcmul(y, part, factor) : part * factor;
    }
    return {order.as_they_lay(y).to(inputs[0].scalar_type())};
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const bool backward = piece != Piece::forward;
    const std::int64_t all = dims.count(op.output_dims[0]),
                       kernel = dims.at(op.inputs[1].dims.back()).size;
    const int wide = wide_element(element);
    // Two operations of an element for each tap. Backward makes the sum again, and two gradients.
    Cost cost = AutogradOp::cost(op, piece, dims, element);
    cost.flops = static_cast<double>((backward ? 4 : 2) * kernel * all);
    cost.executed = (backward ? 1.5 : 1) * cost.flops;
    // What is seen, and two sums.
    cost.accelerator_workspace = (backward ? 6 : 3) * all * wide;
    return cost;
  }
};

}  // namespace

OpTypePtr conv() {
  return only<Conv>();
}

}  // namespace mw
