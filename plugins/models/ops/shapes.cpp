// Ops that move elements and compute nothing new: a sum over dims, two values one after the other,
// dims under other names or in another order, rows by their numbers.
#include <algorithm>

#include "kernel.h"
#include "meshwright/ops.h"

namespace mw {
namespace {

using namespace kernel;

Cost cost_of_passes(std::int64_t elements, int element) {
  Cost cost;
  cost.bytes = static_cast<double>(elements * element);
  cost.workspace = 0;
  return cost;
}

class Sum final : public OpType {
 public:
  std::string kind() const override { return "sum"; }
  OpTraits traits(const Op& op) const override { return traits_without_reads(op); }

  void forward(const Op& op, OpCall& call) const override {
    set_outputs(call, {call.inputs[0].sum(summed(op))});
  }
  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    at::Tensor given = call.grad_outputs[0];
    for (std::int64_t dim : summed(op)) given = given.unsqueeze(dim);
    const std::vector<std::int64_t> shape = call.dims.shape(op.inputs[0].dims);
    put(target(call, 0, shape, given.options()), given.expand(shape));
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    const std::int64_t all = dims.count(op.inputs[0].dims);
    Cost cost = cost_of_passes(all + dims.count(op.output_dims[0]), element);
    cost.executed = static_cast<double>(all);
    cost.workspace.reset();  // measured: at::sum takes more or less by the order of the dims
    cost.accelerator_workspace = 0;
    return cost;
  }

 private:
  // The places of the dims that the output lacks, in order.
  static std::vector<std::int64_t> summed(const Op& op) {
    std::vector<std::int64_t> places;
    const Dims& dims = op.inputs[0].dims;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (!contains(op.output_dims[0], dims[i])) places.push_back(static_cast<std::int64_t>(i));
    }
    return places;
  }
};

class Concat final : public OpType {
 public:
  explicit Concat(Dim into) : into_(into) {}

  std::string kind() const override { return "concat"; }
  OpTraits traits(const Op& op) const override { return traits_without_reads(op); }

  void forward(const Op& op, OpCall& call) const override {
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < 2; ++i) {
      at::Tensor part = call.inputs[i];
      for (const std::int64_t dim : lacked(op, i)) part = part.unsqueeze(dim);
      parts.push_back(part.expand(shape(op, call, i)));
    }
    set_outputs(call, {at::cat(parts, place(op))});
  }
  void backward(const Op& op, OpCall& call) const override {
    const at::Tensor& given = call.grad_outputs[0];
    std::int64_t first = 0;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const std::int64_t size = shape(op, call, i)[static_cast<std::size_t>(place(op))];
      at::Tensor part = given.narrow(place(op), std::exchange(first, first + size), size);
      if (!wanted(call, i)) continue;
      if (const auto over = lacked(op, i); !over.empty()) part = part.sum(over);
      put(target(call, i, part.sizes(), given.options()), part);
    }
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    Cost cost = cost_of_passes(2 * dims.count(op.output_dims[0]), element);
    if (!lacked(op, 0).empty() || !lacked(op, 1).empty()) cost.workspace.reset();
    return cost;
  }

 private:
  std::int64_t place(const Op& op) const {
    const Dims& out = op.output_dims[0];
    return std::find(out.begin(), out.end(), into_) - out.begin();
  }
  // The dim of an operand that lies along `into`: the one that the output lacks.
  static Dim own(const Op& op, std::size_t i) {
    const Dims& dims = op.inputs[i].dims;
    return *std::find_if(dims.begin(), dims.end(),
                         [&](Dim dim) { return !contains(op.output_dims[0], dim); });
  }
  // The places of the output's dims that an operand lacks, in order.
  std::vector<std::int64_t> lacked(const Op& op, std::size_t i) const {
    std::vector<std::int64_t> places;
    const Dims& out = op.output_dims[0];
    for (std::size_t d = 0; d < out.size(); ++d) {
      if (out[d] != into_ && !contains(op.inputs[i].dims, out[d]))
        places.push_back(static_cast<std::int64_t>(d));
    }
    return places;
  }
  std::vector<std::int64_t> shape(const Op& op, const OpCall& call, std::size_t i) const {
    Dims dims = op.output_dims[0];
    std::replace(dims.begin(), dims.end(), into_, own(op, i));
    return call.dims.shape(dims);
  }

  const Dim into_;
};

// The output has the input's elements; its dim i is the input's dim order[i]. A dim that becomes
// another one has its elements there in the order of their places: tokens along seq may lie in
// another order, along no other dim.
class As final : public OpType {
 public:
  explicit As(const std::vector<std::int64_t>& order) : order_(order) {}

  std::string kind() const override { return "as"; }
  OpTraits traits(const Op& op) const override { return traits_without_reads(op); }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor made = call.inputs[0].permute(order_);
    const at::Tensor moved = reordered(op, call, made, /*back=*/false);
    set_outputs(call, {moved.defined() ? moved : made.clone(at::MemoryFormat::Contiguous)});
  }
  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const at::Tensor moved = reordered(op, call, call.grad_outputs[0], /*back=*/true);
    const at::Tensor given = moved.defined() ? moved : call.grad_outputs[0];
    std::vector<std::int64_t> back(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i)
      back[static_cast<std::size_t>(order_[i])] = static_cast<std::int64_t>(i);
    const at::Tensor made = given.permute(back);
    put(target(call, 0, made.sizes(), made.options()), made);
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    Cost cost = cost_of_passes(2 * dims.count(op.output_dims[0]), element);
    if (tokens(op) >= 0) cost.workspace.reset();  // the tokens may lie in another order
    return cost;
  }

 private:
  // The place in the output of the dim that was seq, or that becomes seq; -1: there is none.
  std::int64_t tokens(const Op& op) const {
    static const Dim seq("seq");
    const Dims &in = op.inputs[0].dims, &out = op.output_dims[0];
    if (contains(in, seq) == contains(out, seq)) return -1;
    for (std::size_t d = 0; d < out.size(); ++d) {
      if (in[static_cast<std::size_t>(order_[d])] != out[d]) return static_cast<std::int64_t>(d);
    }
    return -1;
  }
  // The elements in the order that they have in the other tensor; undefined: it is the same.
  at::Tensor reordered(const Op& op, const OpCall& call, const at::Tensor& made, bool back) const {
    const std::int64_t dim = tokens(op);
    if (dim < 0) return {};
    const LocalDim& seq = call.dims.at("seq");
    if (seq.runs.empty()) return {};
    const at::Tensor places = places_of(seq, made);
    const bool to_tokens = contains(op.output_dims[0], Dim("seq")) != back;
    return made.index_select(dim, to_tokens ? places : places.argsort());
  }

  const std::vector<std::int64_t> order_;
};

// Indices (batch, …) of places along a dim as (batch, number, width), the same along width. The
// rows of a permuted seq lie in another order than their places.
at::Tensor rows_at(const LocalDim& dim, const at::Tensor& places, std::int64_t width) {
  at::Tensor indices = places.flatten(1);
  if (!dim.runs.empty()) indices = places_of(dim, indices).argsort().index({indices});
  return indices.unsqueeze(-1).expand({-1, -1, width});
}

// The traits of an op that moves rows to or from the places that its second input names.
OpTraits traits_of_rows(const Op& op) {
  OpTraits traits = traits_without_reads(op);
  traits.backward_reads_input = {false, true};
  traits.gradients_apart = true;
  return traits;
}

class Gather final : public OpType {
 public:
  std::string kind() const override { return "gather"; }
  OpTraits traits(const Op& op) const override { return traits_of_rows(op); }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor& x = call.inputs[0];
    const at::Tensor rows = x.view({x.size(0), x.size(1), -1});
    set_outputs(call, {rows.gather(1, index_of(op, call, rows.size(2)))
                           .view(call.dims.shape(op.output_dims[0]))});
  }
  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const std::vector<std::int64_t> shape = call.dims.shape(op.inputs[0].dims);
    const at::Tensor& given = call.grad_outputs[0];
    const at::Tensor made = at::zeros(shape, given.options());
    const at::Tensor rows = made.view({shape[0], shape[1], -1});
    rows.scatter_add_(1, index_of(op, call, rows.size(2)),
                      given.reshape({shape[0], -1, rows.size(2)}));
    deliver(call, 0, made);
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    Cost cost = cost_of_passes(2 * dims.count(op.output_dims[0]), element);
    cost.workspace.reset();
    return cost;
  }

 private:
  static at::Tensor index_of(const Op& op, const OpCall& call, std::int64_t width) {
    return rows_at(call.dims.at(op.inputs[0].dims[1]), call.inputs[1], width);
  }
};

// Rows with the same index are added.
class Scatter final : public OpType {
 public:
  std::string kind() const override { return "scatter"; }
  OpTraits traits(const Op& op) const override { return traits_of_rows(op); }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor rows = call.inputs[0].reshape({call.inputs[0].size(0), -1, width(op, call)});
    const at::Tensor made = at::zeros(call.dims.shape(op.output_dims[0]), rows.options());
    made.view({rows.size(0), -1, rows.size(2)}).scatter_add_(1, index_of(op, call), rows);
    set_outputs(call, {made});
  }
  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const at::Tensor& given = call.grad_outputs[0];
    const at::Tensor rows = given.reshape({given.size(0), -1, width(op, call)});
    deliver(call, 0, rows.gather(1, index_of(op, call)).view(call.dims.shape(op.inputs[0].dims)));
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    Cost cost =
        cost_of_passes(2 * dims.count(op.inputs[0].dims) + dims.count(op.output_dims[0]), element);
    cost.workspace.reset();
    return cost;
  }

 private:
  static std::int64_t width(const Op& op, const OpCall& call) {
    const Dims& out = op.output_dims[0];
    return call.dims.count(Dims(out.begin() + 2, out.end()));
  }
  static at::Tensor index_of(const Op& op, const OpCall& call) {
    return rows_at(call.dims.at(op.output_dims[0][1]), call.inputs[1], width(op, call));
  }
};

}  // namespace

OpTypePtr gather() {
  return only<Gather>();
}
OpTypePtr scatter() {
  return only<Scatter>();
}
OpTypePtr sum() {
  return only<Sum>();
}
OpTypePtr concat(Dim into) {
  return only_of<Concat>(into);
}
OpTypePtr permuted(const std::vector<std::int64_t>& order) {
  return only_of<As>(order);
}

}  // namespace mw
