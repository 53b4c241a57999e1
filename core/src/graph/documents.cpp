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

Graph Graph::with_documents() const {
  std::vector<std::string> without;
  Graph source = *this;
  int starts = source.find("starts");
  if (starts < 0) starts = source.add_data("starts", {"batch", "seq"}, Scalar::index);
  Graph other = source.replaced([&](int, const Op& op, Graph& graph) {
    auto form = op.type->in_documents(op, starts, graph);
    if (!form) without.push_back(op.name);
    return form ? *std::move(form) : op;
  });
  if (without.empty()) return other;
  throw Error(Stage::plan, "model.documents", "model",
              "model: the rows of the data hold several documents, and " + join(without) +
                  (without.size() == 1 ? " mixes" : " mix") +
                  " tokens of a row, or needs their places in it, whatever their documents are",
              "leave these ops out, or take data whose samples are one document each");
}

}  // namespace mw
