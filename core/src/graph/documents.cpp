// Graphs for rows that hold several documents, in which no token sees a token of another document.
#include <algorithm>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/graph.h"

namespace mw {

std::optional<Op> OpType::in_documents(const Op& op, int, Graph& graph) const {
  const OpTraits traits = this->traits(op);
  const Dim batch("batch"), seq("seq");
  const auto made = [&](Dim dim) {
    return std::any_of(op.output_dims.begin(), op.output_dims.end(),
                       [&](const Dims& dims) { return contains(dims, dim); });
  };
  const bool loss = op_class() == OpClass::loss || op_class() == OpClass::loss_part;
  for (const Use& use : op.inputs) {
    const Value& value = graph.value(use.value);
    if (value.source == Value::Source::data && value.name == "positions") return {};
    for (std::size_t d = 0; d < use.dims.size(); ++d) {
      const Dim tokens = use.dims[d];
      if (value.dims[d] != seq) continue;
      if (contains(op.whole, tokens) || tokens == traits.rotates || tokens == traits.divides)
        return {};
      if (!loss && made(batch) && !made(tokens)) return {};
    }
  }
  return op;
}

std::optional<Op> OpType::in_parted_documents(const Op& op, int, int, Graph& graph) const {
  const bool as_before = std::all_of(op.inputs.begin(), op.inputs.end(), [&](const Use& use) {
    return use.dims.size() == graph.value(use.value).dims.size();
  });
  if (!as_before || reads(graph, op, DataValue::starts)) return {};
  return OpType::in_documents(op, -1, graph);
}

template <class Form>
Graph Graph::in_forms(const Form& form, const std::string& mix, const std::string& hint) const {
  std::vector<std::string> without;
  Graph other = replaced([&](int, const Op& op, Graph& graph) {
    auto made = form(op, graph);
    if (!made) without.push_back(op.name);
    return made ? *std::move(made) : op;
  });
  if (without.empty()) return other;
  throw Error(Stage::plan, "model.documents", "model",
              "model: the rows of the data hold several documents, and " + join(without) +
                  (without.size() == 1 ? " mixes" : " mix") + mix,
              hint);
}

Graph Graph::with_documents() const {
  Graph source = *this;
  int starts = source.find("starts");
  if (starts < 0) starts = source.add_data("starts", {"batch", "seq"}, Scalar::index);
  return source.in_forms(
      [&](const Op& op, Graph& graph) { return op.type->in_documents(op, starts, graph); },
      " tokens of a row, or needs their places in it, whatever their documents are",
      "leave these ops out, or take data whose samples are one document each");
}

Graph Graph::with_parted_documents(int ways) const {
  Graph source = *this;
  const int places = source.add_data(places_of_tokens, {"batch", "seq"}, Scalar::index);
  return source.in_forms(
      [&](const Op& op, Graph& graph) {
        auto form = op.type->in_parted_documents(op, places, ways, graph);
        for (std::size_t o = 0; form && o < op.outputs.size(); ++o) {
          const Dims& dims = form->output_dims[o];
          if (dims != op.output_dims[o])
            graph.body_->values[static_cast<std::size_t>(op.outputs[o])].dims = dims;
        }
        return form;
      },
      " tokens in the order in which a row has them, where each document is parted over ranks",
      "leave these ops out, or part rows instead of documents: balance = \"zigzag\"");
}

}  // namespace mw
