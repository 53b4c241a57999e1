// Ops around scores: how far a key lies before a query, a softmax over a dim, the largest element.
#include <algorithm>
#include <cmath>

#include "fused.h"
#include "heads.h"
#include "kernel.h"
#include "meshwright/autograd_op.h"
#include "meshwright/ops.h"

namespace mw {
namespace {

using namespace kernel;

class Distance final : public OpType {
 public:
  explicit Distance(const DistanceBuckets& options) : options_(options) {}

  std::string kind() const override { return "distance"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = traits_without_reads(op);
    traits.differentiable = false;
    return traits;
  }

  // Distances within a document are those within the row.
  std::optional<Op> in_documents(const Op& op, int, Graph&) const override { return op; }

  // Columns are keys in the order of their places, however tokens lie.
  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor& queries = call.inputs[0];
    const std::int64_t keys = call.dims.at(op.output_dims[0].back()).size;
    const at::Tensor far = queries.unsqueeze(1) - at::arange(keys, queries.options()).unsqueeze(0);
    set_outputs(call, {options_.buckets > 0 ? bucket_of(far) : far.to(call.real)});
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int) const override {
    Cost cost;
    const std::int64_t all = dims.count(op.output_dims[0]);
    cost.bytes = static_cast<double>(16 * all);
    // The distances; for buckets also four tensors of their size, and two of floats, at once.
    cost.accelerator_workspace = (options_.buckets > 0 ? 48 : 8) * all;
    return cost;
  }

 private:
  // As transformers' T5Attention._relative_position_bucket, with the sign turned.
  at::Tensor bucket_of(const at::Tensor& far) const {
    std::int64_t buckets = options_.buckets;
    at::Tensor bucket = at::zeros_like(far), away = far.clamp_min(0);
    if (!options_.causal) {
      buckets /= 2;
      bucket = far.lt(0).to(at::kLong) * buckets;
      away = far.abs();
    }
    const std::int64_t exact = buckets / 2;
    // In fp32 and in this order, as there: borders between buckets are whole numbers.
    const double all =
        std::log(static_cast<double>(options_.furthest) / static_cast<double>(exact));
    const at::Tensor large =
        away.clamp_min(exact).to(at::kFloat).div(exact).log().div(all).mul(buckets - exact);
    const at::Tensor shared = large.to(at::kLong).add(exact).clamp_max(buckets - 1);
    return bucket + at::where(away.lt(exact), away, shared);
  }

  const DistanceBuckets options_;
};

class Softmax final : public OpType {
 public:
  explicit Softmax(Dim over) : over_(over) {}

  std::string kind() const override { return "softmax"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = traits_without_reads(op);
    traits.backward_reads_output = {true};
    traits.gradients_apart = true;
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor& x = call.inputs[0];
    if (in_rows(op, x)) {
      const at::Tensor y = at::empty(x.sizes(), x.options());
      if (kernels().fused.run({kernels().y}, {{y}}, {x})) return set_outputs(call, {y});
    }
    set_outputs(call, {at::softmax(x, place(op))});
  }
  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const at::Tensor &given = call.grad_outputs[0], &made = call.outputs[0];
    if (in_rows(op, given)) {
      const Target dx = target(call, 0, given.sizes(), given.options());
      if (kernels().fused.run({kernels().dx}, {dx}, {at::Tensor(), given, made})) return;
    }
    deliver(call, 0, at::_softmax_backward_data(given, made, place(op), made.scalar_type()));
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    const std::int64_t all = dims.count(op.output_dims[0]);
    Cost cost;
    cost.executed = 5.0 * static_cast<double>(all);
    cost.bytes = static_cast<double>(3 * all * element);
    cost.accelerator_workspace = 0;
    return cost;
  }

 private:
  // Fused kernels of the input, the output's gradient and the output.
  struct Kernels {
    explicit Kernels(Expressions f = {})
        : y(f.parse("exp(a - d) / e")),
          dx(f.parse("c * (b - f)")),
          input(f.parse("a")),
          power(f.parse("exp(a - d)")),
          product(f.parse("b * c")),
          fused(std::move(f), 3,
                {{RowReduction::Kind::max, input},
                 {RowReduction::Kind::sum, power},
                 {RowReduction::Kind::sum, product}}) {}
    int y, dx, input, power, product;
    Fused fused;
  };
  static const Kernels& kernels() {
    static const Kernels all;
    return all;
  }
  bool in_rows(const Op& op, const at::Tensor& x) const {
    return Fused::serves(x) && place(op) + 1 == x.dim();
  }

  std::int64_t place(const Op& op) const {
    const Dims& dims = op.inputs[0].dims;
    return std::find(dims.begin(), dims.end(), over_) - dims.begin();
  }

  const Dim over_;
};

// Elements that are equally large share the gradient.
class Largest final : public AutogradOp {
 public:
  std::string kind() const override { return "max"; }
  std::vector<at::Tensor> compute(const Op& op, const LocalDims&,
                                  const std::vector<at::Tensor>& inputs) const override {
    std::vector<std::int64_t> over;
    const Dims& dims = op.inputs[0].dims;
    for (std::size_t d = 0; d < dims.size(); ++d)
      if (!contains(op.output_dims[0], dims[d])) over.push_back(static_cast<std::int64_t>(d));
    return {at::amax(inputs[0], over)};
  }
};

}  // namespace

OpTypePtr distance(const DistanceBuckets& options) {
  return only_of<Distance>(options);
}
OpTypePtr softmax(Dim over) {
  return only_of<Softmax>(over);
}
OpTypePtr largest() {
  return only<Largest>();
}

}  // namespace mw
