// Checks that ops that read where documents begin keep them apart.
#include <algorithm>

#include "meshwright/inputs.h"
#include "prove/lemmas/parts.h"

namespace mw::lemmas {
namespace {

const Use& use_of(DataValue kind, const Graph& graph, const Op& op) {
  return *std::find_if(op.inputs.begin(), op.inputs.end(), [&](const Use& use) {
    const Value& value = graph.value(use.value);
    return value.source == Value::Source::data && data_value_of(value.name) == kind;
  });
}

// A tensor whose tokens are taken from `places` (batch, seq); itself if it has not both dims.
at::Tensor taken(const at::Tensor& tensor, const at::Tensor& places, const Dims& dims, Dim batch,
                 Dim tokens) {
  if (!contains(dims, batch) || !contains(dims, tokens)) return tensor;
  const auto at_batch = std::find(dims.begin(), dims.end(), batch) - dims.begin(),
             at_tokens = std::find(dims.begin(), dims.end(), tokens) - dims.begin();
  const at::Tensor rows = tensor.movedim({at_batch, at_tokens}, {0, 1});
  at::Tensor index = places;
  while (index.dim() < rows.dim()) index = index.unsqueeze(-1);
  return rows.gather(1, index.expand_as(rows)).movedim({0, 1}, {at_batch, at_tokens}).contiguous();
}

// A mask of tokens (batch, seq), as it broadcasts to a tensor of `dims`, in which these are `batch`
// and `tokens`. Undefined: it has not both.
at::Tensor broadcast(const at::Tensor& mask, const Dims& dims, Dim batch, Dim tokens) {
  const auto at_batch = std::find(dims.begin(), dims.end(), batch) - dims.begin(),
             at_tokens = std::find(dims.begin(), dims.end(), tokens) - dims.begin();
  const auto rank = static_cast<std::int64_t>(dims.size());
  if (at_batch == rank || at_tokens == rank) return {};
  std::vector<std::int64_t> shape(dims.size(), 1);
  shape[static_cast<std::size_t>(at_batch)] = mask.size(0);
  shape[static_cast<std::size_t>(at_tokens)] = mask.size(1);
  return (at_batch < at_tokens ? mask : mask.t()).reshape(shape);
}

}  // namespace

std::vector<Fault> check_documents(WholeOp& whole, const Bound& bound) {
  const Graph& graph = whole.graph();
  const Op& op = whole.op();
  const Use* starts_use = &use_of(DataValue::starts, graph, op);
  const Dim batch("batch"), seq("seq");
  const OpCase& c = whole.whole();
  const at::Tensor starts = c.inputs[static_cast<std::size_t>(starts_use - op.inputs.data())];
  std::vector<Fault> faults;
  for (const at::Tensor& changed : {starts.eq(0), starts.eq(starts.amax(1, true))}) {
    OpCase other = c;
    for (std::size_t i = 0; i < other.inputs.size(); ++i) {
      at::Tensor& input = other.inputs[i];
      const at::Tensor of_tokens =
          broadcast(changed, graph.value(op.inputs[i].value).dims, batch, seq);
      if (!input.is_floating_point() || !of_tokens.defined()) continue;
      input = at::where(of_tokens, whole.normal(input.sizes()).to(input.scalar_type()), input);
    }
    const Made made = forward(other);
    for (std::size_t k = 0; k < made.outputs.size(); ++k) {
      const at::Tensor of_tokens =
          broadcast(changed, op.output_dims[k], starts_use->dims[0], starts_use->dims[1]);
      if (!of_tokens.defined() || !made.outputs[k].is_floating_point()) continue;
      double error = 0;
      const std::string text =
          difference(made.outputs[k].masked_fill(of_tokens, 0),
                     whole.made().outputs[k].masked_fill(of_tokens, 0), 0, bound, error);
      if (text.empty()) continue;
      faults.push_back({Piece::forward,
                        "a token's result changes with tokens of another document: " + text,
                        error});
      return faults;
    }
  }
  return faults;
}

std::vector<Fault> check_parted_documents(WholeOp& whole, const Bound& bound) {
  const Graph& graph = whole.graph();
  const Op& op = whole.op();
  const Use& use = use_of(DataValue::places, graph, op);
  const Dim batch("batch"), seq("seq");
  OpCase sorted = whole.whole();
  const at::Tensor sorts =
      sorted.inputs[static_cast<std::size_t>(&use - op.inputs.data())].argsort();
  for (std::size_t i = 0; i < sorted.inputs.size(); ++i)
    sorted.inputs[i] =
        taken(sorted.inputs[i], sorts, graph.value(op.inputs[i].value).dims, batch, seq);
  const Made made = forward(sorted);
  for (std::size_t k = 0; k < made.outputs.size(); ++k) {
    double error = 0;
    const at::Tensor own =
        taken(whole.made().outputs[k], sorts, op.output_dims[k], use.dims[0], use.dims[1]);
    const std::string text = difference(own, made.outputs[k], 0, bound, error);
    if (text.empty()) continue;
    return {{Piece::forward, "results change with the order in which tokens lie: " + text, error}};
  }
  return {};
}

}  // namespace mw::lemmas
