// A graph built again value by value, with other types of ops in the place of its own.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/op.h"

namespace mw::test {

using TypeOf =
    std::function<std::shared_ptr<const OpType>(const std::shared_ptr<const OpType>& own)>;

// `type_of` is asked for each op, in the graph's order.
inline Graph rebuilt(const Graph& from, const TypeOf& type_of) {
  Graph graph;
  for (const auto& [dim, info] : from.dims())
    graph.set_dim(dim, info.size, info.even, info.like, info.from);
  for (const Value& value : from.values()) {
    if (value.source == Value::Source::data) {
      graph.add_data(value.name, value.dims, value.scalar);
    } else if (value.counts) {
      graph.add_counter(value.name, value.dims, value.moved_by, value.hf);
    } else if (value.source == Value::Source::parameter) {
      graph.add_parameter(value.name, value.dims, value.init, value.hf);
    } else if (value.output == 0) {
      Op op = from.ops()[value.producer];
      std::vector<Graph::Output> outputs;
      for (const int output : std::exchange(op.outputs, {})) {
        const Value& made = from.value(output);
        outputs.push_back({made.name, made.dims, made.scalar, made.needs_grad});
      }
      op.type = type_of(op.type);
      graph.add(std::move(op), outputs);
    }
  }
  graph.layers = from.layers;
  graph.loss = from.loss;
  graph.other_losses = from.other_losses;
  graph.sparse = from.sparse;
  graph.family = from.family;
  return graph;
}

}  // namespace mw::test
