// Distributes layers over virtual stages by their costs.
#include "meshwright/stage_balance.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "meshwright/engine/op_cost.h"
#include "meshwright/op.h"

namespace mw {
namespace {

constexpr int element = 4;  // bytes of a real

double declared_seconds(const Graph& graph, int index) {
  const Op& op = graph.ops()[index];
  LocalDims dims;
  for (const Dim dim : op.space()) {
    const std::int64_t size = dim == Dim("batch") ? 1 : graph.size(dim);
    dims.set({dim, 0, size, size, {}});
  }
  if (!graph.sparse.dims.empty()) dims.set_sparse(graph.sparse);
  const OpTraits& traits = graph.traits(index);
  std::vector<Piece> pieces{Piece::forward};
  bool first = false, others = false;  // whether gradients of these inputs are needed
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    (i == 0 ? first : others) |= graph.value(op.inputs[i].value).needs_grad;
  if (traits.splits && first) pieces.push_back(Piece::dgrad);
  if (traits.splits && others) pieces.push_back(Piece::wgrad);
  if (traits.differentiable && !traits.splits && (first || others))
    pieces.push_back(Piece::backward);
  double seconds = 0;
  for (const Piece piece : pieces) seconds += nominal_seconds(cost_of(op, piece, dims, element));
  return seconds;
}

// How bad a distribution is: the highest cost of a stage, and then the sum of the squares of costs.
std::pair<double, double> badness(const std::vector<double>& costs) {
  return {*std::max_element(costs.begin(), costs.end()),
          std::inner_product(costs.begin(), costs.end(), costs.begin(), 0.0)};
}

bool is_less(const std::pair<double, double>& a, const std::pair<double, double>& b) {
  constexpr double rounding = 1e-9;
  if (a.first < b.first * (1 - rounding)) return true;
  return a.first <= b.first * (1 + rounding) && a.second < b.second * (1 - rounding);
}

}  // namespace

double nominal_seconds(const Cost& cost) {
  constexpr double flops_a_second = 1e12, bytes_a_second = flops_a_second / 20;
  return std::max(cost.executed / flops_a_second, cost.bytes / bytes_a_second);
}

LayerCosts declared_costs(const Graph& graph) {
  LayerCosts costs;
  costs.layers.resize(static_cast<std::size_t>(graph.layers), 0);
  std::vector<double> seconds(graph.ops().size());
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    const int op = static_cast<int>(i), kind = graph.kind(op), layer = graph.ops()[i].layer;
    seconds[i] = kind == op ? declared_seconds(graph, op) : seconds[kind];
    const bool inside = layer >= 0 && layer < graph.layers;
    double& cost = inside ? costs.layers[layer] : layer < 0 ? costs.first : costs.last;
    cost += seconds[i];
  }
  return costs;
}

std::vector<double> stage_costs(const LayerCosts& costs, const std::vector<int>& layers,
                                const std::vector<int>& stage_of) {
  std::vector<double> stages(*std::max_element(stage_of.begin(), stage_of.end()) + 1, 0);
  auto layer = costs.layers.begin();
  for (std::size_t v = 0; v < layers.size(); ++v) {
    double& cost = stages[stage_of[v]];
    cost = std::accumulate(layer, layer + layers[v], cost);
    layer += layers[v];
    if (v == 0) cost += costs.first;
    if (v + 1 == layers.size()) cost += costs.last;
  }
  return stages;
}

std::vector<int> even_layers(int layers, int vstages) {
  std::vector<int> even;
  const bool last_empty = layers < vstages, first_empty = layers + 1 < vstages;
  const int parts = vstages - (last_empty ? 1 : 0) - (first_empty ? 1 : 0);
  if (first_empty) even.push_back(0);
  for (int v = 0; v < parts; ++v)
    even.push_back(static_cast<int>(shard_range(layers, parts, v).size));
  if (last_empty) even.push_back(0);
  return even;
}

bool can_give(const std::vector<int>& layers, std::size_t vstage) {
  const bool end = vstage == 0 || vstage + 1 == layers.size();
  return layers[vstage] > (end ? 0 : 1);
}

std::vector<int> with_move(std::vector<int> layers, const std::vector<int>& stage_of, int from,
                           int to) {
  int gives = -1, takes = -1;
  for (int v = 0; v < static_cast<int>(layers.size()); ++v) {
    if (stage_of[v] == from && can_give(layers, static_cast<std::size_t>(v)) &&
        (gives < 0 || layers[v] > layers[gives]))
      gives = v;
    if (stage_of[v] == to && (takes < 0 || layers[v] < layers[takes])) takes = v;
  }
  if (gives < 0 || takes < 0) return {};
  --layers[gives];
  ++layers[takes];
  return layers;
}

std::vector<int> balance_layers(const LayerCosts& costs, const std::vector<int>& stage_of) {
  const std::size_t parts = stage_of.size();
  std::vector<int> layers =
      even_layers(static_cast<int>(costs.layers.size()), static_cast<int>(parts));
  if (parts < 2) return layers;
  for (std::size_t moves = 0; moves < 4 * parts + costs.layers.size(); ++moves) {
    const std::vector<double> now = stage_costs(costs, layers, stage_of);
    const auto heaviest = std::max_element(now.begin(), now.end()) - now.begin();
    std::pair<double, double> best = badness(now);
    std::vector<int> better;
    for (std::size_t from = 0; from < parts; ++from) {
      if (stage_of[from] != heaviest || !can_give(layers, from)) continue;
      for (std::size_t to = 0; to < parts; ++to) {
        if (stage_of[to] == heaviest) continue;
        std::vector<int> moved = layers;
        --moved[from];
        ++moved[to];
        const auto bad = badness(stage_costs(costs, moved, stage_of));
        if (!is_less(bad, best)) continue;
        best = bad;
        better = std::move(moved);
      }
    }
    if (better.empty()) break;
    layers = std::move(better);
  }
  return layers;
}

}  // namespace mw
