// What ops need that go through a sequence from its first token to its last, where a strategy may
// have given the tokens another order: TokenOrder sorts them by their places in the sequence, and
// the functions below help ops that are computed in parts of the sequence (OpType::in_parts).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernel.h"
#include "meshwright/graph.h"

namespace mw::kernel {

class TokenOrder {
 public:
  TokenOrder() = default;  // tokens lie in their order
  // `seq`: the whole dim on this rank.
  TokenOrder(const LocalDim& seq, const at::Tensor& like) {
    if (seq.runs.size() <= 1) return;
    places_ = places_of(seq, like);
    sorts_ = places_.argsort();
  }
  // `places` (batch, seq): each row has an order of its own.
  explicit TokenOrder(const at::Tensor& places) : places_(places), sorts_(places.argsort()) {}
  // Tensors of (batch, seq, ...).
  at::Tensor sorted(const at::Tensor& tokens) const { return taken(tokens, sorts_); }
  at::Tensor as_they_lay(const at::Tensor& sorted) const { return taken(sorted, places_); }

 private:
  static at::Tensor taken(const at::Tensor& tokens, const at::Tensor& from) {
    if (!from.defined()) return tokens;
    if (from.dim() == 1) return tokens.index_select(1, from);
    at::Tensor index = from;
    while (index.dim() < tokens.dim()) index = index.unsqueeze(-1);
    return tokens.gather(1, index.expand_as(tokens));
  }

  at::Tensor places_, sorts_;
};

// Adds a dim as large as `parts`, under which an op reads the parts of the whole sequence on each
// rank.
inline Dim all_parts(Dim parts, Graph& graph) {
  const Dim all(parts.name() + "_before");
  graph.set_dim(all, graph.size(parts), true, {}, parts.name() + ", as read by later parts");
  return all;
}

// An op for what the parts of `op` need of each other, to be added to the graph before `op`.
inline Op op_beside(const Op& op, const char* name, OpTypePtr type, std::vector<Use> inputs,
                    Dims whole) {
  Op other = op;
  other.name += name;
  other.type = std::move(type);
  other.inputs = std::move(inputs);
  other.outputs.clear();
  other.output_dims.clear();
  other.whole = std::move(whole);
  return other;
}

// Where a rank's parts lie among its tokens. Each part is one run of the sequence.
inline std::vector<Range> tokens_of_parts(const LocalDim& seq, const LocalDim& parts) {
  const bool runs = seq.runs.size() > 1;
  TORCH_CHECK(!runs || static_cast<std::int64_t>(seq.runs.size()) == parts.size,
              "a rank's parts are not the runs of its tokens");
  const auto count = static_cast<int>(parts.size);
  std::vector<Range> tokens;
  std::int64_t begin = 0;
  for (int part = 0; part < count; ++part) {
    const std::int64_t size = runs ? seq.runs[static_cast<std::size_t>(part)].size
                                   : shard_range(seq.size, count, part).size;
    tokens.push_back({begin, size});
    begin += size;
  }
  return tokens;
}

// The place in the sequence of each part, in the order in which they lie.
inline std::vector<std::int64_t> places_of_parts(const LocalDim& parts) {
  std::vector<Range> runs = parts.runs;
  if (runs.empty()) runs = {{parts.offset, parts.size}};
  std::vector<std::int64_t> places;
  for (const Range& run : runs) {
    for (std::int64_t i = 0; i < run.size; ++i) places.push_back(run.offset + i);
  }
  return places;
}

// Whether an operand of an op lies along the tokens of rows with its second dim.
inline bool along_seq(const Op& op, std::size_t input, const Graph& graph) {
  return graph.value(op.inputs[input].value).dims[1] == Dim("seq");
}

// The form of attention for rows of documents (OpType::in_documents): of the type `type`, with the
// places of documents as a further operand, of the queries, and if `of_keys` then of the keys.
inline std::optional<Op> attention_in_documents(const Op& op, int starts, const Graph& graph,
                                                OpTypePtr type, bool of_keys) {
  const bool queries = along_seq(op, 0, graph), keys = along_seq(op, 1, graph);
  if (!keys) return op;  // keys outside of the row, as those of an image, are in no document
  if (!queries) return {};
  Op form = op;
  form.type = std::move(type);
  for (std::size_t i = 0; i < (of_keys ? 2 : 1); ++i)
    form.inputs.push_back({starts, {op.inputs[i].dims[0], op.inputs[i].dims[1]}});
  return form;
}

// Attention that attention_in_documents() made, where documents are parted: an op of the type
// `type` that also reads the places of queries and of keys.
inline std::optional<Op> attention_in_parted_documents(const Op& op, int places, OpTypePtr type) {
  Op form = op;
  form.type = std::move(type);
  for (const std::size_t i : {0, 1})
    form.inputs.push_back({places, {op.inputs[i].dims[0], op.inputs[i].dims[1]}});
  return form;
}

// How far each token (batch, seq) lies behind the first one of its document.
inline at::Tensor places_in_documents(const LocalDim& seq, const at::Tensor& starts) {
  return places_of(seq, starts).unsqueeze(0) - starts;
}

}  // namespace mw::kernel
