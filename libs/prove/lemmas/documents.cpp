// Checks that ops that read where documents begin keep them apart.
#include <algorithm>

#include "meshwright/inputs.h"
#include "prove/lemmas/parts.h"

namespace mw::lemmas {
namespace {

bool is_starts(const Graph& graph, const Use& use) {
  const Value& value = graph.value(use.value);
  return value.source == Value::Source::data && data_value_of(value.name) == DataValue::starts;
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
  const auto starts_use = std::find_if(op.inputs.begin(), op.inputs.end(),
                                       [&](const Use& use) { return is_starts(graph, use); });
  const Dim batch("batch"), seq("seq");
  const OpCase& c = whole.whole();
  const at::Tensor starts = c.inputs[static_cast<std::size_t>(starts_use - op.inputs.begin())];
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

}  // namespace mw::lemmas
