// A linear recurrence along the sequence whose state is a matrix of each head, in chunks: within a
// chunk by products over its pairs of tokens, from chunk to chunk by the state [Dao and Gu 2024,
// "Transformers are SSMs", section 6; Yang et al. 2024, "Parallelizing Linear Transformers with the
// Delta Rule", section 3.2]. And tensors whose dims become other dims.
#include "scan.h"

#include <algorithm>
#include <limits>

#include "heads.h"
#include "kernel.h"
#include "meshwright/autograd_op.h"
#include "token_order.h"

namespace mw {
namespace {

using namespace kernel;

// Operands: (batch, tokens, heads, …), those of a chunk (batch, heads, tokens, …).
struct ScanOperands {
  at::Tensor q, k, v, decay, rate;
  // A chunk is cut out before its dims change places, so that gradients lie as the operands do.
  ScanOperands chunk(std::int64_t first, std::int64_t count) const {
    const auto of = [&](const at::Tensor& all) {
      return all.defined() ? all.narrow(1, first, count).transpose(1, 2) : all;
    };
    return {of(q), of(k), of(v), of(decay), of(rate)};
  }
};

// The decays between the tokens of a chunk: `between` (…, i, j), what is left at token i of what
// token j brought, 0 for a later j; `since`, what is left at i of the state before the chunk. The
// logarithms of decays have one sign and are added, never subtracted: no digits cancel, and a decay
// of minus infinity (the state is forgotten) makes no NaN.
struct ScanDecays {
  at::Tensor between, since;
  explicit ScanDecays(const at::Tensor& decay) {
    const std::int64_t tokens = decay.size(-1);
    const at::Tensor ones =
        at::ones({tokens, tokens}, decay.options().dtype(at::kBool).requires_grad(false));
    const at::Tensor none = at::zeros({}, decay.options().requires_grad(false));
    const at::Tensor sums = at::where(ones.tril(-1), decay.unsqueeze(-1), none).cumsum(-2);
    between = sums.masked_fill(ones.triu(1), -std::numeric_limits<double>::infinity()).exp();
    since = decay.cumsum(-1).exp().unsqueeze(-1);
  }
  at::Tensor until_end() const { return between.select(-2, between.size(-2) - 1).unsqueeze(-1); }
  at::Tensor of_all() const { return since.narrow(-2, since.size(-2) - 1, 1); }
};

// What each token adds to the state along its key: its value, or, with rates, the part of it that
// the state does not yet say: the solution u of u_i = b_i (v_i - k_i h_(i-1) decayed), where h has
// the u before i.
at::Tensor scan_news(const ScanOperands& c, const ScanDecays& decays, const at::Tensor& state) {
  if (!c.rate.defined()) return c.v;
  const at::Tensor rate = c.rate.unsqueeze(-1), keys = c.k * rate;
  at::Tensor right = c.v * rate;
  if (state.defined()) right = right - at::matmul(keys * decays.since, state);
  const at::Tensor system = at::matmul(keys, c.k.transpose(-1, -2)) * decays.between;
  return at::linalg_solve_triangular(system, right, /*upper=*/false, /*left=*/true,
                                     /*unitriangular=*/true);
}

// The output of a chunk; `state` (batch, heads, state, width) becomes that after the chunk.
// Undefined: there is nothing before the chunk.
at::Tensor scan_chunk(const ScanOperands& c, at::Tensor& state) {
  const ScanDecays decays(c.decay);
  const at::Tensor news = scan_news(c, decays, state);
  at::Tensor y = at::matmul(at::matmul(c.q, c.k.transpose(-1, -2)) * decays.between, news);
  if (state.defined()) y = y + at::matmul(c.q * decays.since, state);
  const at::Tensor brought = at::matmul((c.k * decays.until_end()).transpose(-1, -2), news);
  state = state.defined() ? state * decays.of_all() + brought : brought;
  return y;
}

class Scan final : public AutogradOp {
 public:
  explicit Scan(const ScanOptions& options) : chunk_(options.chunk), delta_(options.delta) {}

  std::string kind() const override { return delta_ ? "delta_scan" : "scan"; }
  OpClass op_class() const override { return OpClass::attention; }

  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const TokenOrder order(dims.at(op.inputs[2].dims[1]), inputs[2]);
    const auto of_heads = [&](std::size_t i) {
      const at::Tensor sorted = order.sorted(inputs[i]).to(wide(inputs[i]));
      return i < 2 ? spread(sorted, heads_of(op, dims, i)) : sorted;
    };
    const ScanOperands all{of_heads(0), of_heads(1), of_heads(2), of_heads(3),
                           delta_ ? of_heads(4) : at::Tensor()};
    const std::int64_t tokens = all.v.size(1);
    std::vector<at::Tensor> made;
    at::Tensor state;
    for (std::int64_t first = 0; first < tokens; first += chunk_) {
      const ScanOperands chunk = all.chunk(first, std::min(chunk_, tokens - first));
      made.push_back(scan_chunk(chunk, state).transpose(1, 2));
    }
    const at::Tensor y = order.as_they_lay(at::cat(made, 1));
    return {y.to(inputs[2].scalar_type()).contiguous()};
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const Dims &q = op.inputs[0].dims, &v = op.inputs[2].dims;
    const std::int64_t rows = dims.count({v[0], v[1], v[2]});  // tokens of heads
    const std::int64_t chunk = std::min(chunk_, dims.at(v[1]).size), state = dims.at(q[3]).size,
                       width = dims.at(v[3]).size;
    const bool backward = piece != Piece::forward;
    // A token's products: with the tokens of its chunk, and with the state, which it reads and
    // writes. The delta rule's are twice as many.
    const std::int64_t products =
        (delta_ ? 2 : 1) * (2 * chunk * (state + width) + 4 * state * width);
    Cost cost = AutogradOp::cost(op, piece, dims, element);
    cost.flops = (backward ? 2.0 : 1.0) * static_cast<double>(rows) * static_cast<double>(products);
    cost.executed = (backward ? 1.5 : 1.0) * cost.flops;  // backward runs forward again
    // Passes over scores and decays, and over what is as wide as operands.
    const std::int64_t passes = 8 * chunk + 6 * (state + width);
    cost.bytes +=
        (backward ? 3.0 : 1.0) * static_cast<double>(rows * passes * wide_element(element));
    // Scores and decays of a chunk; backward keeps those of all chunks, and copies of operands.
    const std::int64_t of_a_row = 4 * chunk + 3 * (2 * state + 2 * width);
    const std::int64_t kept = backward ? 2 * rows : rows / dims.at(v[1]).size * chunk;
    cost.accelerator_workspace =
        (kept * of_a_row + rows * (2 * state + 2 * width)) * wide_element(element);
    return cost;
  }

 private:
  static HeadMap heads_of(const Op& op, const LocalDims& dims, std::size_t input) {
    return map_heads(dims.at(op.inputs[2].dims[2]), dims.at(op.inputs[input].dims[2]));
  }

  const std::int64_t chunk_;
  const bool delta_;
};

// The last `from` dims become the last `to` dims. Of each row, a rank's output has those of its
// elements that are in its input too, and zeros for the others: its term of a sum over ranks.
class Reshaped final : public OpType {
 public:
  explicit Reshaped(const std::pair<std::int64_t, std::int64_t>& counts)
      : from_(static_cast<std::size_t>(counts.first)),
        to_(static_cast<std::size_t>(counts.second)) {}

  std::string kind() const override { return "reshape"; }
  OpTraits traits(const Op& op) const override { return traits_without_reads(op); }

  void forward(const Op& op, OpCall& call) const override {
    const auto [in, out, both] = spans(op, call.dims);
    const std::vector<std::int64_t> shape = call.dims.shape(op.output_dims[0]);
    const at::Tensor rows =
        part_of(call.inputs[0].reshape({-1, in.size}), 1, both.offset - in.offset, both.size);
    const at::Tensor made = at::empty(shape, rows.options());
    copy({made.view({-1, out.size}), false}, both.offset - out.offset, rows);
    set_outputs(call, {made});
  }
  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const auto [in, out, both] = spans(op, call.dims);
    const at::Tensor& given = call.grad_outputs[0];
    const Target to = target(call, 0, call.dims.shape(op.inputs[0].dims), given.options());
    copy({to.tensor.view({-1, in.size}), to.add}, both.offset - in.offset,
         part_of(given.reshape({-1, out.size}), 1, both.offset - out.offset, both.size));
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    Cost cost;
    cost.bytes = 2.0 * static_cast<double>(dims.count(op.output_dims[0]) * element);
    cost.workspace = 0;
    return cost;
  }

 private:
  // Writes rows that begin at a column, or adds them; the other columns get zeros.
  static void copy(const Target& to, std::int64_t first, const at::Tensor& rows) {
    if (rows.size(1) < to.tensor.size(1) && !to.add) to.tensor.zero_();
    put(to, 1, first, rows.size(1), rows);
  }

  // The elements of a row of the whole that lie in the input, in the output, and in both.
  struct Spans {
    Range in, out, both;
  };
  static Range span(const Dims& dims, std::size_t last, const LocalDims& local) {
    std::int64_t rest = 1;
    for (std::size_t i = dims.size() - last + 1; i < dims.size(); ++i)
      rest *= local.at(dims[i]).size;
    const LocalDim& outer = local.at(dims[dims.size() - last]);
    return {outer.offset * rest, outer.size * rest};
  }
  static std::int64_t whole(const Dims& dims, std::size_t last, const LocalDims& local) {
    std::int64_t elements = 1;
    for (std::size_t i = dims.size() - last; i < dims.size(); ++i)
      elements *= local.at(dims[i]).global;
    return elements;
  }
  Spans spans(const Op& op, const LocalDims& dims) const {
    Spans spans{span(op.inputs[0].dims, from_, dims), span(op.output_dims[0], to_, dims), {}};
    TORCH_CHECK(whole(op.inputs[0].dims, from_, dims) == whole(op.output_dims[0], to_, dims),
                "the dims that it makes have another number of elements");
    const auto& [in, out, _] = spans;
    const std::int64_t first = std::max(in.offset, out.offset),
                       end = std::min(in.offset + in.size, out.offset + out.size);
    spans.both = {first, std::max<std::int64_t>(end - first, 0)};
    if (spans.both.size == 0) spans.both.offset = in.offset;
    return spans;
  }

  const std::size_t from_, to_;
};

}  // namespace

OpTypePtr scan(const ScanOptions& options) {
  return only_of<Scan>(options);
}
OpTypePtr reshaped(std::int64_t from, std::int64_t to) {
  return only_of<Reshaped>(std::pair(from, to));
}

}  // namespace mw
