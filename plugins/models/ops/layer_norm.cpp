// LayerNorm with weight and bias, by ATen's kernels.
#include "kernel.h"
#include "meshwright/ops.h"

namespace mw {
namespace {

using namespace kernel;

class LayerNorm final : public OpType {
 public:
  explicit LayerNorm(double eps) : eps_(eps) {}
  std::string kind() const override { return "layer_norm"; }
  OpClass op_class() const override { return OpClass::norm; }

  OpTraits traits(const Op& op) const override {
    OpTraits traits;
    traits.backward_reads_input = {true, true, false};
    traits.backward_reads_output = {false};
    traits.saved = {{"mean", normalised_rows(op), 0, true}, {"rstd", normalised_rows(op), 0, true}};
    traits.gradient_passes = {false, false, false};
    traits.gradients_apart = true;
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor& x = call.inputs[0];
    auto [y, mean, rstd] =
        at::native_layer_norm(x, call.inputs[1].sizes(), call.inputs[1], call.inputs[2], eps_);
    const auto shape = call.dims.shape(normalised_rows(op));
    // On CPU half types come with half statistics; backward takes either.
    const at::ScalarType type = wide(x);
    set_outputs(call, {y});
    call.saved = {mean.to(type).view(shape), rstd.to(type).view(shape)};
  }

  void backward(const Op&, OpCall& call) const override {
    const at::Tensor& x = call.inputs[0];
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.back() = 1;
    at::ScalarType type = wide(x);
    const at::Tensor& weight = call.inputs[1];
    if (x.is_cpu()) type = x.scalar_type();
    // ATen reads the bias for its shape alone, so that the weight can stand in for it.
    auto [dx, dw, db] = at::native_layer_norm_backward(
        call.grad_outputs[0], x, weight.sizes(), call.saved[0].to(type).reshape(shape),
        call.saved[1].to(type).reshape(shape), weight, weight,
        {wanted(call, 0), wanted(call, 1), wanted(call, 2)});
    if (wanted(call, 0)) deliver(call, 0, dx);
    if (wanted(call, 1)) deliver(call, 1, dw);
    if (wanted(call, 2)) deliver(call, 2, db);
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t columns = dims.count(op.inputs[1].dims);
    const std::int64_t count = dims.count(normalised_rows(op));
    const std::int64_t elements = count * columns;
    const std::int64_t sum = wide_element(element);
    Cost cost;
    // The statistics in the kernel's type; in backward also the gradients of weight and bias.
    cost.accelerator_workspace = (element < 4 ? 2 * count * element : 0) +
                                 (piece == Piece::forward ? 0 : 2 * columns * element);
    if (piece == Piece::forward) {
      cost.executed = 8.0 * static_cast<double>(elements);
      cost.bytes = static_cast<double>((2 * elements + 2 * columns) * element + 2 * count * sum);
    } else {
      cost.executed = 14.0 * static_cast<double>(elements);
      cost.bytes = static_cast<double>((3 * elements + 3 * columns) * element + 2 * count * sum);
    }
    return cost;
  }

 private:
  double eps_;
};

}  // namespace

OpTypePtr layer_norm(double eps) {
  return only_of<LayerNorm>(eps);
}

}  // namespace mw
