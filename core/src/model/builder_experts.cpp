// Adds the parts of models with experts to a graph: router, dispatch, the experts' linears,
// combine, and the losses that balance them.
#include "meshwright/builder.h"

namespace mw {

std::pair<int, int> Builder::route(const std::string& name, int logits, int bias,
                                   const RouterOptions& options) {
  const Dims chosen{"batch", "seq", "top"};
  const std::vector<int> made =
      graph.add(op(name, mw::route(options), {use(logits), use(bias)}, {"scores", "top"}),
                {{name + ".weights", chosen}, {name + ".picks", chosen, Scalar::index, false}});
  return {made[0], made[1]};
}

int Builder::admit(const std::string& name, int picks, std::int64_t capacity) {
  return graph.add(
      op(name, mw::admit(capacity, graph.size("experts")), {use(picks)}, {"seq", "top"}),
      {{"", graph.value(picks).dims, Scalar::index, false}})[0];
}

void Builder::balance_loss(const std::string& name, int logits, int picks, RouterScore score,
                           double factor) {
  const int stats = graph.add(op(name + ".stats", balance_stats(score), {use(logits), use(picks)},
                                 {"scores", "top", "load"}),
                              {{"", {"load", "batch", "scores"}}})[0];
  graph.other_losses.push_back(graph.add(
      op(name, mw::balance_loss(factor), {use(stats)}, {"scores", "load"}), {{"", {}}})[0]);
}

void Builder::z_loss(const std::string& name, int logits, double factor) {
  graph.other_losses.push_back(
      graph.add(op(name, mw::z_loss(factor), {use(logits)}, {"scores"}), {{"", {}}})[0]);
}

std::pair<int, int> Builder::dispatch(const std::string& name, int x, int picks) {
  const std::vector<int> made =
      graph.add(op(name, mw::dispatch(), {use(x), use(picks)}, {"top"}),
                {{name + ".rows", {"experts", "batch", "seq", "hidden"}},
                 {name + ".places", {"experts", "batch", "seq"}, Scalar::index, false}});
  return {made[0], made[1]};
}

int Builder::expert_linear(const std::string& name, int rows, Dims weight, HfName hf, bool counts) {
  Dims out = graph.value(rows).dims;
  out.back() = weight[1];
  const int parameter_ =
      parameter(name + ".weight", std::move(weight), {Init::Kind::normal, 0.02}, std::move(hf));
  Op made = op(name, mw::expert_linear(), {use(rows), use(parameter_)});
  made.counts_rows = counts;
  return graph.add(std::move(made), {{"", out}})[0];
}

int Builder::combine(const std::string& name, int rows, int weights, int places) {
  std::vector<Use> inputs{use(rows), use(weights), use(places)};
  inputs[0].linear = true;
  return graph.add(op(name, mw::combine(), std::move(inputs), {"top"}),
                   {{"", {"batch", "seq", "hidden"}}})[0];
}

}  // namespace mw
