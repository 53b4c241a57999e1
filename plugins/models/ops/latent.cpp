// The ops of latent attention that split and join tensors. Each copies to its outputs, so that its
// inputs need not be kept.
#include <algorithm>

#include "kernel.h"
#include "meshwright/ops.h"

namespace mw {
namespace {

using namespace kernel;

class Split final : public OpType {
 public:
  std::string kind() const override { return "split"; }

  OpTraits traits(const Op& op) const override { return traits_without_reads(op); }

  void forward(const Op& op, OpCall& call) const override {
    const std::int64_t first = width(op, call.dims, 0), second = width(op, call.dims, 1);
    const at::Tensor& x = call.inputs[0];
    const std::int64_t dim = place(op);
    set_outputs(call, {x.narrow(dim, 0, first).clone(at::MemoryFormat::Contiguous),
                       x.narrow(dim, first, second).clone(at::MemoryFormat::Contiguous)});
  }

  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const std::int64_t first = width(op, call.dims, 0), second = width(op, call.dims, 1);
    const at::Tensor& known = call.grad_outputs[call.grad_outputs[0].defined() ? 0 : 1];
    const Target to = target(call, 0, call.dims.shape(op.inputs[0].dims), known.options());
    put(to, place(op), 0, first, call.grad_outputs[0]);
    put(to, place(op), first, second, call.grad_outputs[1]);
  }

  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    Cost cost;
    cost.workspace = 0;
    cost.bytes = static_cast<double>(2 * dims.count(op.inputs[0].dims) * element);
    return cost;
  }

 private:
  // The place of the dim that is split.
  static std::int64_t place(const Op& op) {
    const Dims &in = op.inputs[0].dims, &out = op.output_dims[0];
    return std::mismatch(in.begin(), in.end(), out.begin()).first - in.begin();
  }
  static std::int64_t width(const Op& op, const LocalDims& dims, std::size_t output) {
    return dims.at(op.output_dims[output][static_cast<std::size_t>(place(op))]).size;
  }
};

class LatentKeys final : public OpType {
 public:
  std::string kind() const override { return "latent_keys"; }

  OpTraits traits(const Op& op) const override { return traits_without_reads(op); }

  void forward(const Op& op, OpCall& call) const override {
    const Widths w = widths(op, call.dims);
    const at::Tensor &kv = call.inputs[0], &turned = call.inputs[1];
    const at::Tensor k = at::empty(call.dims.shape(op.output_dims[0]), kv.options());
    k.narrow(-1, 0, w.plain).copy_(kv.narrow(-1, 0, w.plain));
    k.narrow(-1, w.plain, w.turned).copy_(turned.unsqueeze(2));
    set_outputs(call, {k, kv.narrow(-1, w.plain, w.value).clone(at::MemoryFormat::Contiguous)});
  }

  void backward(const Op& op, OpCall& call) const override {
    const Widths w = widths(op, call.dims);
    const at::Tensor &dk = call.grad_outputs[0], &dv = call.grad_outputs[1];
    const at::TensorOptions options = (dk.defined() ? dk : dv).options();
    if (wanted(call, 0)) {
      const Target to = target(call, 0, call.dims.shape(op.inputs[0].dims), options);
      put(to, -1, 0, w.plain, dk.defined() ? dk.narrow(-1, 0, w.plain) : dk);
      put(to, -1, w.plain, w.value, dv);
    }
    if (!wanted(call, 1)) return;
    const Target to = target(call, 1, call.dims.shape(op.inputs[1].dims), options);
    if (dk.defined() && !to.add) {
      at::Tensor sum = to.tensor;
      at::sum_out(sum, dk.narrow(-1, w.plain, w.turned), 2);
    } else {
      put(to, -1, 0, w.turned, dk.defined() ? dk.narrow(-1, w.plain, w.turned).sum(2) : dk);
    }
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t kv = dims.count(op.inputs[0].dims), turned = dims.count(op.inputs[1].dims),
                       made = dims.count(op.output_dims[0]) + dims.count(op.output_dims[1]);
    Cost cost;
    cost.workspace = 0;
    cost.bytes = static_cast<double>((kv + turned + made) * element);
    if (piece != Piece::forward) cost.executed = static_cast<double>(made - kv);
    return cost;
  }

 private:
  struct Widths {
    std::int64_t plain = 0, turned = 0, value = 0;
  };
  static Widths widths(const Op& op, const LocalDims& dims) {
    const std::int64_t turned = dims.at(op.inputs[1].dims.back()).size;
    return {dims.at(op.output_dims[0].back()).size - turned, turned,
            dims.at(op.output_dims[1].back()).size};
  }
};

}  // namespace

OpTypePtr split() {
  return only<Split>();
}
OpTypePtr latent_keys() {
  return only<LatentKeys>();
}

}  // namespace mw
