// A causal convolution of each channel along the sequence, as Mamba and its kin have before
// their recurrence [Gu and Dao 2023, "Mamba", section 3.4]. Where the sequence is cut, each part
// first gets the last tokens of the part before it.
#include <algorithm>

#include "kernel.h"
#include "meshwright/autograd_op.h"
#include "meshwright/graph.h"
#include "scan.h"
#include "token_order.h"

namespace mw {
namespace {

using namespace kernel;

// x (batch, tokens, ...) with zeros before its tokens.
at::Tensor padded(const at::Tensor& x, std::int64_t zeros) {
  std::vector<std::int64_t> pads(2 * static_cast<std::size_t>(x.dim()) - 2, 0);
  pads[pads.size() - 2] = zeros;  // the last dim stands first
  return at::constant_pad_nd(x, pads, 0);
}

// The last tokens of each part of a sequence, which the next part sees: from x (batch, seq,
// channels...), (batch, parts, tokens, channels...). Zeros stand before those of a shorter part.
class PartEnds final : public AutogradOp {
 public:
  std::string kind() const override { return "part_ends"; }

  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const Dims& out = op.output_dims[0];
    const std::int64_t count = dims.at(out[2]).size;
    std::vector<at::Tensor> ends;
    for (const Range& part : tokens_of_parts(dims.at(op.inputs[0].dims[1]), dims.at(out[1]))) {
      const std::int64_t seen = std::min(part.size, count);
      const at::Tensor last = inputs[0].narrow(1, part.offset + part.size - seen, seen);
      ends.push_back(padded(last, count - seen));
    }
    return {at::stack(ends, 1)};
  }
};

// The tokens that each part sees of the part before it; zeros before the first part. A rank reads
// the ends of all parts (PartEnds); a strategy may have stored them in another order than that of
// the sequence.
class EndsBefore final : public AutogradOp {
 public:
  std::string kind() const override { return "ends_before"; }

  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const auto all = places_of_parts(dims.at(op.inputs[0].dims[1]));
    std::vector<at::Tensor> before;
    for (const std::int64_t place : places_of_parts(dims.at(op.output_dims[0][1]))) {
      const auto last = std::find(all.begin(), all.end(), place - 1);
      before.push_back(last == all.end() ? at::zeros_like(inputs[0].select(1, 0)).detach()
                                         : inputs[0].select(1, last - all.begin()));
    }
    return {at::stack(before, 1)};
  }
};

struct ConvOptions {
  bool documents =
      false;              // an input after weight and bias has the places of documents (batch, seq)
  bool in_parts = false;  // the last input has the tokens before each part (EndsBefore)
  friend bool operator==(const ConvOptions&, const ConvOptions&) = default;
};

class Conv final : public AutogradOp {
 public:
  explicit Conv(const ConvOptions& options)
      : documents_(options.documents), in_parts_(options.in_parts) {}

  std::string kind() const override { return "conv"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = AutogradOp::traits(op);
    if (!in_parts_) traits.divides = op.inputs[0].dims[1];
    return traits;
  }

  std::optional<Op> in_documents(const Op& op, int starts, Graph& graph) const override {
    if (!along_seq(op, 0, graph)) return op;
    Op form = op;
    form.type = only_of<Conv>(ConvOptions{true});
    form.inputs.push_back({starts, {op.inputs[0].dims[0], op.inputs[0].dims[1]}});
    return form;
  }

  std::optional<Op> in_parts(const Op& op, Dim parts, Graph& graph) const override {
    const Dims& x = op.inputs[0].dims;
    const Dim taps = op.inputs[1].dims.back(), seen(taps.name() + "_before");
    const std::int64_t count = graph.size(taps) - 1;
    // A part must have all tokens that the next part sees.
    if (count == 0 || graph.size(x[1]) / graph.size(parts) < count) return std::nullopt;
    graph.set_dim(seen, count, true, {}, taps.name() + " - 1");
    Dims of_part{x[0], parts, seen};
    of_part.insert(of_part.end(), x.begin() + 2, x.end());
    Op ends = op_beside(op, ".ends", only<PartEnds>(), {op.inputs[0]}, {seen});
    ends.follows.emplace_back(parts, x[1]);
    Use read{graph.add(std::move(ends), {{"", of_part}})[0], of_part};
    read.dims[1] = all_parts(parts, graph);
    Op before = op_beside(op, ".before", only<EndsBefore>(), {read}, {read.dims[1], seen});
    Op conv = op;
    conv.type = only_of<Conv>(ConvOptions{documents_, true});
    conv.inputs.push_back({graph.add(std::move(before), {{"", of_part}})[0], of_part});
    erase_if(conv.whole, [&](Dim dim) { return dim == x[1]; });
    conv.whole.push_back(seen);
    conv.follows.emplace_back(parts, x[1]);
    return conv;
  }

  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const LocalDim& seq = dims.at(op.inputs[0].dims[1]);
    const at::ScalarType type = wide(inputs[0]);
    at::Tensor behind;
    if (documents_) behind = places_in_documents(seq, inputs[inputs.size() - (in_parts_ ? 2 : 1)]);
    if (!in_parts_) {
      const TokenOrder order(seq, inputs[0]);
      const at::Tensor x = order.sorted(inputs[0]).to(type);
      if (documents_) behind = order.sorted(behind);
      const at::Tensor y = slid(padded(x, inputs[1].size(-1) - 1), inputs, behind);
      return {order.as_they_lay(y).to(inputs[0].scalar_type())};
    }
    const std::vector<Range> parts = tokens_of_parts(seq, dims.at(op.inputs.back().dims[1]));
    std::vector<at::Tensor> made;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const at::Tensor before = inputs.back().select(1, static_cast<std::int64_t>(part));
      const at::Tensor x = inputs[0].narrow(1, parts[part].offset, parts[part].size);
      at::Tensor of_part;
      if (documents_) of_part = behind.narrow(1, parts[part].offset, parts[part].size);
      made.push_back(slid(at::cat({before, x}, 1).to(type), inputs, of_part));
    }
    return {at::cat(made, 1).to(inputs[0].scalar_type())};
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
    // What is seen, and two sums; of documents also what is hidden, and copies of what is not.
    cost.accelerator_workspace = (backward ? 6 : 3) * all * wide;
    if (documents_) *cost.accelerator_workspace += all * wide * (backward ? kernel : 1) + 16 * all;
    return cost;
  }

 private:
  // The sums for all tokens but those that only later ones see. `behind`: how far each token lies
  // behind the first one that it sees; undefined: no limit.
  at::Tensor slid(const at::Tensor& seen, const std::vector<at::Tensor>& inputs,
                  const at::Tensor& behind) const {
    std::vector<std::int64_t> shape = seen.sizes().vec();
    shape[0] = shape[1] = 1;
    const at::Tensor weight = inputs[1].to(seen.scalar_type());
    const std::int64_t kernel = weight.size(-1), tokens = seen.size(1) - (kernel - 1);
    at::Tensor y;
    if (inputs.size() > (in_parts_ ? 3U : 2U) + (documents_ ? 1U : 0U))
      y = inputs[2].to(seen.scalar_type()).view(shape);
    for (std::int64_t tap = 0; tap < kernel; ++tap) {
      const at::Tensor factor = weight.select(-1, tap).reshape(shape);
      at::Tensor part = seen.narrow(1, tap, tokens);
      if (behind.defined()) {
        std::vector<std::int64_t> rows(static_cast<std::size_t>(part.dim()), 1);
        rows[0] = part.size(0), rows[1] = tokens;
        part = part.masked_fill(behind.lt(kernel - 1 - tap).reshape(rows), 0);
      }
      y = y.defined() ? at::addcmul(y, part, factor) : part * factor;
    }
    return y;
  }

  const bool documents_, in_parts_;
};

}  // namespace

OpTypePtr conv() {
  return only_of<Conv>(ConvOptions{});
}

}  // namespace mw
