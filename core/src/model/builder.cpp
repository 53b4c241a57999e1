// Adds the parts that all models share (embedding, linears, norms, attention, residual adds,
// loss) to a graph, with parameters and names.
#include "meshwright/builder.h"

#include <algorithm>

#include "meshwright/ops.h"

namespace mw {

Builder::Builder(std::string family, std::int64_t batch, std::int64_t sequence, std::int64_t vocab,
                 std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn) {
  graph.family = std::move(family);
  graph.set_dim("batch", batch);
  graph.set_dim("seq", sequence, false);
  graph.set_dim("keys", sequence, false);
  graph.set_dim("vocab", vocab, false);
  graph.set_dim("hidden", hidden);
  graph.set_dim("heads", heads);
  graph.set_dim("kv_heads", kv_heads);
  graph.set_dim("head_dim", hidden / heads);
  graph.set_dim("ffn", ffn, false);
  graph.set_dim("stat", 2);
  tokens = graph.add_data("tokens", {"batch", "seq"}, Scalar::index);
  labels = graph.add_data("labels", {"batch", "seq"}, Scalar::index);
  positions = graph.add_data("positions", {"seq"}, Scalar::index);
}

Op Builder::op(const std::string& name, std::shared_ptr<const OpType> type, std::vector<Use> inputs,
               Dims whole) const {
  Op op;
  op.type = std::move(type);
  op.name = name;
  op.layer = layer;
  op.inputs = std::move(inputs);
  op.whole = std::move(whole);
  return op;
}

int Builder::parameter(const std::string& name, Dims dims, Init init, HfName hf) {
  return graph.add_parameter(name, std::move(dims), init, std::move(hf));
}

int Builder::embedding(const std::string& name, int weight) {
  return graph.add(op(name, mw::embedding(), {use(tokens), use(weight)}),
                   {{"", {"batch", "seq", "hidden"}}})[0];
}

int Builder::linear(const std::string& name, int x, int weight, int bias) {
  const Dims& in = graph.value(x).dims;
  const Dims& w = graph.value(weight).dims;
  const auto lacks = [](const Dims& dims, Dim dim) {
    return std::find(dims.begin(), dims.end(), dim) == dims.end();
  };
  Dims out;
  std::copy_if(in.begin(), in.end(), std::back_inserter(out), [&](Dim d) { return lacks(w, d); });
  std::copy_if(w.begin(), w.end(), std::back_inserter(out), [&](Dim d) { return lacks(in, d); });
  std::vector<Use> inputs{use(x), use(weight)};
  if (bias >= 0) {
    inputs.push_back(use(bias));
    inputs.back().additive = true;
  }
  return graph.add(op(name, mw::linear(), std::move(inputs)), {{"", out}})[0];
}

int Builder::rms_norm(const std::string& name, int x, HfName hf, double eps) {
  const Dim width = graph.value(x).dims.back();
  const int weight = parameter(name + ".weight", {width}, {Init::Kind::ones, 0}, std::move(hf));
  return graph.add(op(name, mw::rms_norm(eps), {use(x), use(weight)}, {width}),
                   {{"", graph.value(x).dims}})[0];
}

int Builder::layer_norm(const std::string& name, int x, const std::string& hf, double eps) {
  const int weight =
      parameter(name + ".weight", {"hidden"}, {Init::Kind::ones, 0}, {hf + ".weight"});
  const int bias = parameter(name + ".bias", {"hidden"}, {Init::Kind::zeros, 0}, {hf + ".bias"});
  return graph.add(op(name, mw::layer_norm(eps), {use(x), use(weight), use(bias)}, {"hidden"}),
                   {{"", graph.value(x).dims}})[0];
}

int Builder::add_positions(const std::string& name, int x, int weight) {
  return graph.add(
      op(name, mw::add_positions(), {use(x), use(positions), use(weight)}, {"positions"}),
      {{"", graph.value(x).dims}})[0];
}

std::vector<int> Builder::rope_table(const std::string& name, double theta, Dim width,
                                     RopePairs pairs) {
  const Dims dims{"seq", width};
  return graph.add(
      op(name, mw::rope_table(theta, pairs), {use(positions)}, {width}),
      {{name + ".cos", dims, Scalar::real, false}, {name + ".sin", dims, Scalar::real, false}});
}

int Builder::rope(const std::string& name, int x, const std::vector<int>& table, RopePairs pairs) {
  const Dims& dims = graph.value(x).dims;
  return graph.add(op(name, mw::rope(pairs), {use(x), use(table[0]), use(table[1])},
                      {dims.back(), graph.value(table[0]).dims.back()}),
                   {{"", dims}})[0];
}

int Builder::attention(const std::string& name, int q, int k, int v, std::int64_t window) {
  const auto keys = [&](int value) {
    Use renamed = use(value);
    std::replace(renamed.dims.begin(), renamed.dims.end(), Dim("seq"), Dim("keys"));
    return renamed;
  };
  const Dim value = graph.value(v).dims.back();
  Dims out = graph.value(q).dims;
  Op made =
      op(name, mw::attention(window), {use(q), keys(k), keys(v)}, {"keys", out.back(), value});
  made.follows = {{"kv_heads", "heads"}};
  out.back() = value;
  return graph.add(std::move(made), {{"", out}})[0];
}

std::pair<int, int> Builder::split(const std::string& name, int x, Dim first, Dim second) {
  Dims one = graph.value(x).dims, two = one;
  const Dim whole = one.back();
  one.back() = first;
  two.back() = second;
  const std::vector<int> made =
      graph.add(op(name, mw::split(), {use(x)}, {whole, first, second}),
                {{name + "." + first.name(), one}, {name + "." + second.name(), two}});
  return {made[0], made[1]};
}

std::pair<int, int> Builder::latent_keys(const std::string& name, int kv, int turned, Dim width,
                                         Dim value) {
  Dims keys = graph.value(kv).dims, values = keys;
  const Dims whole{keys.back(), graph.value(turned).dims.back(), width, value};
  keys.back() = width;
  values.back() = value;
  const std::vector<int> made =
      graph.add(op(name, mw::latent_keys(), {use(kv), use(turned)}, whole),
                {{name + ".k", keys}, {name + ".v", values}});
  return {made[0], made[1]};
}

int Builder::swiglu(const std::string& name, int gate, int up) {
  return graph.add(op(name, mw::swiglu(), {use(gate), use(up)}), {{"", graph.value(gate).dims}})[0];
}

int Builder::gelu(const std::string& name, int x) {
  return graph.add(op(name, mw::gelu(), {use(x)}), {{"", graph.value(x).dims}})[0];
}

int Builder::add(const std::string& name, int stream, int branch) {
  return graph.add(op(name, mw::add(), {use(stream), use(branch)}),
                   {{"", graph.value(stream).dims}})[0];
}

void Builder::cross_entropy(int logits, std::int64_t token_count) {
  Op max = op("loss.max", ce_max(), {use(logits)});
  max.contraction = Reduction::max;
  const int shift = graph.add(std::move(max), {{"", {"batch", "seq"}, Scalar::real, false}})[0];
  const int stats =
      graph.add(op("loss.stats", ce_stats(), {use(logits), use(shift), use(labels)}, {"stat"}),
                {{"", {"stat", "batch", "seq"}}})[0];
  graph.loss = graph.add(op("loss", ce_loss(token_count), {use(stats)}, {"stat"}), {{"", {}}})[0];
}

}  // namespace mw
