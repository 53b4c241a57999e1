// Brings tokens to the experts they chose (dispatch), and what the experts made of them back
// (combine).
#include <algorithm>

#include "base/host_wait.h"
#include "meshwright/ops.h"
#include "model/ops/kernel.h"

namespace mw {
namespace {

using namespace kernel;

at::Tensor tokens_of(const at::Tensor& order, std::int64_t top) {
  return at::floor_divide(order, top);
}

// A token a row.
at::Tensor by_token(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

class Dispatch final : public OpType {
 public:
  std::string kind() const override { return "dispatch"; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {false, false};
    traits.backward_reads_output = {false, true};
    traits.gradient_passes = {false, false};
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const LocalDim& experts = call.dims.at(op.output_dims[0][0]);
    const at::Tensor x = by_token(call.inputs[0]);
    const at::Tensor picks = call.inputs[1].flatten();
    const HostWait waits("rows of experts");
    const at::Tensor here =
        at::nonzero((picks >= experts.offset).logical_and_(picks < experts.offset + experts.size))
            .squeeze(1);
    const at::Tensor chosen = picks.index_select(0, here);
    const at::Tensor order = here.index_select(0, at::argsort(chosen, /*stable=*/true));
    const at::Tensor counts =
        at::bincount(chosen - experts.offset, {}, experts.size).to(at::kCPU).contiguous();
    const auto* first = counts.const_data_ptr<std::int64_t>();
    call.rows.assign(first, first + experts.size);
    set_outputs(call, {x.index_select(0, tokens_of(order, call.inputs[1].size(-1))), order});
  }

  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const Dims& dims = op.inputs[0].dims;
    const at::Tensor& gradient = call.grad_outputs[0];
    const std::int64_t top = call.dims.at(op.inputs[1].dims.back()).size;
    const std::vector<std::int64_t> shape = call.dims.shape(dims);
    Target to = target(call, 0, shape, gradient.options());
    if (!to.add) to.tensor.zero_();
    to.tensor.view({-1, shape.back()}).index_add_(0, tokens_of(call.outputs[1], top), gradient);
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t rows = dims.count(op.output_dims[1]), cells = dims.count(op.output_dims[0]);
    const std::int64_t picks = dims.count(op.inputs[1].dims);
    Cost cost;
    cost.executed = static_cast<double>(piece == Piece::forward ? picks : cells);
    cost.bytes = static_cast<double>((piece == Piece::forward ? 2 : 3) * cells * element);
    const std::int64_t groups = dims.at(op.output_dims[0][0]).size;
    cost.workspace = 8 * (piece == Piece::forward ? 3 * rows + groups : rows);
    return cost;
  }
};

class Combine final : public OpType {
 public:
  std::string kind() const override { return "combine"; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {true, true, true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false, false, false};
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor& y = call.inputs[0];
    const std::vector<std::int64_t> shape = call.dims.shape(op.output_dims[0]);
    at::Tensor out = at::zeros(shape, y.options());
    at::Tensor sums = out.view({-1, shape.back()});
    in_chunks(call, [&](const Chunk& c) { sums.index_add_(0, c.tokens, c.of(y) * c.weights); });
    set_outputs(call, {out});
  }

  void backward(const Op&, OpCall& call) const override {
    const at::Tensor &y = call.inputs[0], &weights = call.inputs[1];
    const at::Tensor gradient = by_token(call.grad_outputs[0]);
    const Target dw =
        wanted(call, 1) ? target(call, 1, weights.sizes(), weights.options()) : Target();
    if (dw.tensor.defined() && !dw.add) dw.tensor.zero_();
    const Target dy = wanted(call, 0) ? target(call, 0, y.sizes(), y.options()) : Target();
    in_chunks(call, [&](const Chunk& c) {
      const at::Tensor rows = gradient.index_select(0, c.tokens);
      if (dw.tensor.defined()) {
        dw.tensor.view({-1}).index_add_(0, c.places,
                                        (rows * c.of(y)).sum(1, false, weights.scalar_type()));
      }
      if (!dy.tensor.defined()) return;
      at::Tensor to = c.of(dy.tensor);
      if (dy.add) {
        to.addcmul_(rows, c.weights);
      } else {
        at::mul_out(to, rows, c.weights);
      }
    });
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t cells = dims.count(op.inputs[0].dims), rows = dims.count(op.inputs[2].dims);
    const std::int64_t columns = dims.at(op.inputs[0].dims.back()).size;
    const std::int64_t step = chunk_rows(rows, columns * element);
    Cost cost;
    cost.executed = static_cast<double>((piece == Piece::forward ? 2 : 4) * cells);
    cost.bytes = static_cast<double>((piece == Piece::forward ? 4 : 6) * cells * element);
    const std::int64_t wide = wide_element(element), row = columns * element;
    cost.workspace = rows * (8 + element);
    if (piece == Piece::forward) {
      cost.workspace += step * row;
    } else {
      cost.workspace += step * (wide + (element < wide ? 4 : 2) * row);
    }
    return cost;
  }

 private:
  // Some of the rows: from which tokens, in which of the places that weights have, and those.
  struct Chunk {
    std::int64_t first = 0;
    at::Tensor tokens, places, weights;
    at::Tensor of(const at::Tensor& rows) const { return rows.narrow(0, first, tokens.size(0)); }
  };

  template <class Do>
  static void in_chunks(const OpCall& call, const Do& what) {
    const at::Tensor &y = call.inputs[0], &places = call.inputs[2];
    const at::Tensor tokens = tokens_of(places, call.inputs[1].size(-1));
    const at::Tensor weights =
        call.inputs[1].flatten().index_select(0, places).to(y.scalar_type()).unsqueeze(1);
    const std::int64_t rows = y.size(0);
    const std::int64_t step = chunk_rows(y, rows, y.size(1) * y.element_size());
    for (std::int64_t first = 0; first < rows; first += step) {
      const auto here = [&](const at::Tensor& all) {
        return all.narrow(0, first, std::min(step, rows - first));
      };
      what({first, here(tokens), here(places), here(weights)});
    }
  }
};

}  // namespace

OpTypePtr dispatch() {
  return only<Dispatch>();
}
OpTypePtr combine() {
  return only<Combine>();
}

}  // namespace mw
