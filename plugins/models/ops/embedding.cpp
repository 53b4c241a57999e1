// Token embedding over a vocab that may be cut, and learned positions.
#include "kernel.h"
#include "meshwright/ops.h"

namespace mw {
namespace {

using namespace kernel;

// table[index] += rows, where an index may come several times. With an index that is expanded over
// the columns ATen sorts and adds whole rows, straight into the table.
void scatter_rows(const at::Tensor& table, const at::Tensor& index, const at::Tensor& rows) {
  table.scatter_add_(0, index.unsqueeze(1).expand({index.numel(), rows.size(1)}), rows);
}

class Embedding final : public OpType {
 public:
  std::string kind() const override { return "embedding"; }
  OpClass op_class() const override { return OpClass::embedding; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {true, false};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false, false};
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const LocalDim& vocab = call.dims.at(op.inputs[1].dims[0]);
    const at::Tensor& weight = call.inputs[1];
    const at::Tensor tokens = call.inputs[0].reshape({-1});
    const std::int64_t count = tokens.numel();
    at::Tensor y = at::empty({count, weight.size(1)}, weight.options());
    if (vocab.size == vocab.global) {
      at::index_select_out(y, weight, 0, tokens);
    } else if (vocab.size == 0) {
      y.zero_();
    } else {
      const std::int64_t step = chunk_rows(tokens, count, weight.size(1) * weight.element_size());
      for (std::int64_t r = 0; r < count; r += step) {
        const std::int64_t n = std::min(step, count - r);
        at::Tensor yc = y.narrow(0, r, n), index = tokens.narrow(0, r, n) - vocab.offset;
        const at::Tensor held = inside(index, vocab.size);
        at::index_select_out(yc, weight, 0, index.clamp_(0, vocab.size - 1));
        yc.mul_(held.to(yc.scalar_type()).unsqueeze(1));
      }
    }
    set_outputs(call, {y.view(call.dims.shape(op.output_dims[0]))});
  }

  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 1)) return;
    const LocalDim& vocab = call.dims.at(op.inputs[1].dims[0]);
    const std::int64_t columns = call.dims.at(op.inputs[1].dims[1]).size;
    const at::Tensor tokens = call.inputs[0].reshape({-1});
    const at::Tensor dy = rows_of(call.grad_outputs[0], columns);
    const Target to = target(call, 1, {vocab.size, columns}, dy.options());
    if (!to.add) to.tensor.zero_();
    if (vocab.size == vocab.global) return scatter_rows(to.tensor, tokens, dy);
    if (vocab.size == 0) return;
    const std::int64_t count = tokens.numel();
    const std::int64_t step = chunk_rows(tokens, count, columns * dy.element_size());
    for (std::int64_t r = 0; r < count; r += step) {
      const std::int64_t n = std::min(step, count - r);
      at::Tensor index = tokens.narrow(0, r, n) - vocab.offset;
      const at::Tensor held = inside(index, vocab.size).to(dy.scalar_type()).unsqueeze(1);
      scatter_rows(to.tensor, index.clamp_(0, vocab.size - 1), dy.narrow(0, r, n).mul(held));
    }
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const LocalDim& vocab = dims.at(op.inputs[1].dims[0]);
    const std::int64_t columns = dims.at(op.inputs[1].dims[1]).size;
    const std::int64_t count = dims.count(op.inputs[0].dims);
    Cost cost;
    cost.workspace = 0;
    cost.bytes = static_cast<double>(2 * count * columns * element + count * 8);
    cost.further_kernels = piece == Piece::forward ? 0 : 1;  // zeros, to which rows are added
    if (vocab.size < vocab.global && vocab.size > 0) {
      cost.further_kernels = 7;  // they find the rows of the table that this rank holds
      // For each row its index, whether this rank holds it, and that as a factor.
      const std::int64_t row =
          piece == Piece::forward ? 8 + 1 + element : 8 + element + columns * element;
      workspace_of_rows(cost, count, columns * element,
                        [&](std::int64_t step) { return step * row; });
    }
    return cost;
  }

 private:
  static at::Tensor inside(const at::Tensor& index, std::int64_t size) {
    at::Tensor held = index.ge(0);
    held.logical_and_(index.lt(size));
    return held;
  }
};

class AddPositions final : public OpType {
 public:
  // `documents`: the last input has the places of documents (batch, seq), from whose first tokens
  // positions count.
  explicit AddPositions(bool documents) : documents_(documents) {}

  std::string kind() const override { return "add_positions"; }
  OpClass op_class() const override { return OpClass::elementwise; }

  OpTraits traits(const Op& op) const override {
    OpTraits traits;
    traits.backward_reads_input.assign(op.inputs.size(), true);
    traits.backward_reads_input[0] = traits.backward_reads_input[2] = false;
    traits.backward_reads_output = {false};
    traits.gradient_passes.assign(op.inputs.size(), false);
    traits.gradient_passes[0] = true;
    traits.forward_in_place = 0;
    return traits;
  }

  std::optional<Op> in_documents(const Op& op, int starts, Graph&) const override {
    Op form = op;
    form.type = only_of<AddPositions>(true);
    form.inputs.push_back({starts, {op.inputs[0].dims[0], op.inputs[1].dims[0]}});
    return form;
  }

  // The places of tokens, in each row, instead of the positions of all rows.
  std::optional<Op> in_parted_documents(const Op& op, int places, int, Graph&) const override {
    Op form = op;
    form.inputs[1] = {places, op.inputs[3].dims};
    return form;
  }

  void forward(const Op&, OpCall& call) const override {
    const at::Tensor at = rows_read(call);
    at::Tensor rows = call.inputs[2].index_select(0, at.flatten());
    if (documents_) rows = rows.unflatten(0, at.sizes());
    at::Tensor x = call.inputs[0];
    set_outputs(call, {call.in_place ? x.add_(rows) : at::add(x, rows)});
  }

  void backward(const Op& op, OpCall& call) const override {
    const at::Tensor& dy = call.grad_outputs[0];
    if (wanted(call, 0)) {
      put(target(call, 0, dy.sizes(), dy.options()), dy);
    }
    if (!wanted(call, 2)) return;
    const Target to = target(call, 2, call.dims.shape(op.inputs[2].dims), dy.options());
    if (!to.add) to.tensor.zero_();
    if (documents_) {
      scatter_rows(to.tensor, rows_read(call).flatten(), dy.flatten(0, 1));
    } else {
      scatter_rows(to.tensor, call.inputs[1], dy.sum(0));
    }
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t elements = dims.count(op.inputs[0].dims);
    const std::int64_t read = dims.count(op.inputs[documents_ ? 3 : 1].dims),
                       rows = read * dims.at(op.inputs[2].dims[1]).size;
    Cost cost;
    cost.executed = static_cast<double>(elements);
    cost.bytes = static_cast<double>((piece == Piece::forward ? 2 : 1) * elements + 2 * rows);
    cost.bytes *= element;
    cost.workspace = rows * element + (documents_ ? 8 * read : 0);
    return cost;
  }

 private:
  // The row of the table that each token adds: (seq), or with documents (batch, seq).
  at::Tensor rows_read(const OpCall& call) const {
    return documents_ ? call.inputs[1] - call.inputs[3] : call.inputs[1];
  }

  const bool documents_;
};

}  // namespace

OpTypePtr embedding() {
  return only<Embedding>();
}

OpTypePtr add_positions() {
  return only_of<AddPositions>(false);
}

}  // namespace mw
