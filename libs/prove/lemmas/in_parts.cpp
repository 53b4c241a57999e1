// Compares the ops that compute an op of the model in parts with that op, on one rank.
#include <algorithm>

#include "meshwright/autograd_op.h"
#include "prove/lemmas/parts.h"

namespace mw::lemmas {
namespace {

// Ops of one rank over values of small sizes, run one after the other, and backward again.
class OneRank {
 public:
  OneRank(const Graph& graph, std::map<int, at::Tensor> values)
      : graph_(graph), values_(std::move(values)) {
    for (const Op& op : graph.ops()) {
      const Made made = forward(case_of(op));
      for (std::size_t k = 0; k < op.outputs.size(); ++k) values_[op.outputs[k]] = made.outputs[k];
    }
  }
  const at::Tensor& value(int index) const { return values_.at(index); }

  std::map<int, at::Tensor> gradients(std::map<int, at::Tensor> of) const {
    for (auto op = graph_.ops().rbegin(); op != graph_.ops().rend(); ++op) {
      Tensors seeds;
      for (const int output : op->outputs) seeds.push_back(of[output]);
      const Made made = run(case_of(*op), seeds, Into::fresh);
      for (std::size_t i = 0; i < op->inputs.size(); ++i) {
        if (is_index(op->inputs[i].value)) continue;
        at::Tensor& sum = of[op->inputs[i].value];
        sum = sum.defined() ? sum + made.inputs[i] : made.inputs[i];
      }
    }
    return of;
  }

  bool is_index(int value) const { return graph_.value(value).scalar == Scalar::index; }

 private:
  OpCase case_of(const Op& op) const {
    OpCase c{op, {}, {}, {}, std::vector<bool>(op.inputs.size(), false), {}};
    for (const Dim dim : op.space()) c.dims.set({dim, 0, graph_.size(dim), graph_.size(dim), {}});
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      c.inputs.push_back(values_.at(op.inputs[i].value));
      c.wants.push_back(!is_index(op.inputs[i].value));
    }
    return c;
  }

  const Graph& graph_;
  std::map<int, at::Tensor> values_;
};

// The dim of parts in an op that is computed in parts: it follows the dim that the model's
// divides.
Dim parts_of(const Op& op) {
  const Dim along = op.of_model().type->traits(op.of_model()).divides;
  const auto found = std::find_if(op.follows.begin(), op.follows.end(),
                                  [&](const auto& pair) { return pair.second == along; });
  return found == op.follows.end() ? Dim() : found->first;
}

// A graph of the model's op alone, which is computed of drawn values.
Graph alone(const Graph& graph, const Op& op, const std::map<Dim, std::int64_t>& sizes) {
  Graph one;
  for (const auto& [dim, size] : sizes) one.set_dim(dim, size);
  Op copy = op;
  for (Use& use : copy.inputs) {
    const Value& value = graph.value(use.value);
    use.value = one.add_data(value.name, use.dims, value.scalar);
  }
  std::vector<Graph::Output> outputs;
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    const Value& value = graph.value(op.outputs[k]);
    outputs.push_back({value.name, op.output_dims[k], value.scalar, value.needs_grad});
  }
  one.add(std::move(copy), outputs);
  return one;
}

}  // namespace

std::vector<Fault> check_in_parts(WholeOp& last, const Bound& bound) {
  const Op &op = last.op(), &model = op.of_model();
  std::map<Dim, std::int64_t> sizes;
  for (const Dim dim : op.space()) sizes[dim] = last.graph().size(dim);
  const Graph whole = alone(last.graph(), model, sizes);
  const Graph parts = whole.with_parts({{0, parts_of(op)}});
  if (parts.ops().size() == whole.ops().size())
    throw NotChecked("it is not computed in parts at the sizes that are tried");
  std::map<int, at::Tensor> drawn;
  for (std::size_t i = 0; i < model.inputs.size(); ++i)
    drawn[whole.ops()[0].inputs[i].value] = last.whole().inputs[i];
  const OneRank needed(whole, drawn), found(parts, drawn);
  std::vector<Fault> faults;
  const auto compare = [&](Piece piece, const at::Tensor& is, const at::Tensor& must,
                           const std::string& what) {
    double error = 0;
    const std::string text = difference(is, must, 0, bound, error);
    if (!text.empty()) faults.push_back({piece, what + ": " + text, error});
  };
  std::map<int, at::Tensor> seeds;
  for (const int made : whole.ops()[0].outputs) {
    const at::Tensor& value = needed.value(made);
    compare(Piece::forward, found.value(made), value, "computed in parts, it makes something else");
    seeds[made] = last.normal(value.sizes()).to(value.scalar_type());
  }
  const auto by_parts = found.gradients(seeds), by_whole = needed.gradients(seeds);
  for (std::size_t i = 0; i < model.inputs.size(); ++i) {
    const int value = whole.ops()[0].inputs[i].value;
    if (needed.is_index(value)) continue;
    compare(Piece::backward, by_parts.at(value), by_whole.at(value),
            "computed in parts, the gradient of " + last.input_name(i) + " is another one");
  }
  return faults;
}

}  // namespace mw::lemmas
