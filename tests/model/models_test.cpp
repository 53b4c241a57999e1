// Whole models: their graphs run op by op against Llama and GPT-2 written plainly, their
// parameters, and what they refuse.
#include <torch/csrc/autograd/autograd.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "graph/init.h"
#include "interpreter.h"
#include "meshwright/model.h"
#include "support/problems.h"
#include "support/registered.h"

namespace mw::test {

Outcome interpret(const Graph& graph, const std::map<std::string, at::Tensor>& given) {
  const std::size_t count = graph.values().size();
  std::vector<at::Tensor> values(count), gradients(count);
  std::vector<std::vector<at::Tensor>> saved(graph.ops().size());
  const auto dims_of = [&](const Op& op) {
    LocalDims dims;
    for (Dim dim : op.space()) dims.set({dim, 0, graph.size(dim), graph.size(dim)});
    return dims;
  };
  at::ScalarType real = at::kDouble;
  for (std::size_t v = 0; v < count; ++v) {
    if (graph.value(v).source == Value::Source::op) continue;
    values[v] = given.at(graph.value(v).name);
    if (values[v].is_floating_point()) real = values[v].scalar_type();
  }
  for (std::size_t o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.ops()[o];
    const LocalDims dims = dims_of(op);
    OpCall call{dims, {}, {}, {}, {}, {}, {}, {}, false, real};
    for (const Use& use : op.inputs) call.inputs.push_back(values[use.value]);
    op.type->forward(op, call);
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      values[op.outputs[i]] = call.outputs[i];
      const Value& value = graph.value(op.outputs[i]);
      REQUIRE(call.outputs[i].sizes().vec() == dims.shape(op.output_dims[i]));
      REQUIRE(call.outputs[i].numel() == graph.count(op.outputs[i]));
      INFO(value.name);
      const bool wide = value.fp32_at_least && real == at::kBFloat16;
      REQUIRE(call.outputs[i].scalar_type() == (wide ? at::kFloat : real));
    }
    saved[o] = call.saved;
  }
  gradients[graph.loss] = at::ones_like(values[graph.loss]);
  for (std::size_t o = graph.ops().size(); o-- > 0;) {
    const Op& op = graph.ops()[o];
    const OpTraits traits = op.type->traits(op);
    if (!traits.differentiable) continue;
    const LocalDims dims = dims_of(op);
    OpCall call{dims, {}, {}, saved[o], {}, {}, {}, {}, false, real};
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const int v = op.inputs[i].value;
      call.inputs.push_back(traits.backward_reads_input[i] ? values[v] : at::Tensor());
      call.wants.push_back(graph.value(v).needs_grad);
      call.grad_inputs.push_back(gradients[v]);
      call.accumulate.push_back(gradients[v].defined());
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      call.outputs.push_back(traits.backward_reads_output[i] ? values[op.outputs[i]]
                                                             : at::Tensor());
      call.grad_outputs.push_back(gradients[op.outputs[i]]);
    }
    if (traits.splits) {
      op.type->dgrad(op, call);
      op.type->wgrad(op, call);
    } else {
      op.type->backward(op, call);
    }
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (call.wants[i]) gradients[op.inputs[i].value] = call.grad_inputs[i];
    }
  }
  Outcome outcome{values[graph.loss], {}};
  for (int p : graph.parameters()) outcome.gradients[graph.value(p).name] = gradients[p];
  return outcome;
}

std::map<std::string, at::Tensor> start(const Graph& graph, std::uint64_t seed,
                                        at::ScalarType type) {
  at::manual_seed(seed);
  std::map<std::string, at::Tensor> given;
  for (const Value& value : graph.values()) {
    if (value.source == Value::Source::op) continue;
    std::vector<std::int64_t> shape;
    for (Dim dim : value.dims) shape.push_back(graph.size(dim));
    if (value.source == Value::Source::parameter) {
      given[value.name] = at::empty(shape, type);
      fill(given[value.name], value, seed);
    } else if (value.name == "positions") {
      given[value.name] = at::arange(shape[0], at::kLong);
    } else {
      given[value.name] = at::randint(graph.size("vocab"), shape, at::kLong);
    }
  }
  return given;
}

namespace {

using Given = std::map<std::string, at::Tensor>;

std::shared_ptr<const Model> made(const char* kind, const Json& given) {
  return test::made<Model>("model", kind, given);
}

Graph build(const char* kind, const Json& given, int sequences = 2, int length = 6) {
  return made(kind, given)->build(sequences, length, sequences * length);
}

at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const std::int64_t seq = q.size(1), repeat = q.size(2) / k.size(2);
  const at::Tensor kk = k.repeat_interleave(repeat, 2), vv = v.repeat_interleave(repeat, 2);
  const at::Tensor hidden = at::ones({seq, seq}, at::kBool).triu(1);
  const at::Tensor scores =
      at::einsum("bsnd,btnd->bnst", {q, kk}) / std::sqrt(static_cast<double>(q.size(3)));
  return at::einsum("bnst,btnd->bsnd", {scores.masked_fill(hidden, -INFINITY).softmax(-1), vv});
}

at::Tensor plain_llama(const Given& w, int layers, bool tied, double theta) {
  const auto p = [&](const std::string& name) { return w.at(name + ".weight"); };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-5) * p(name);
  };
  at::Tensor x = at::embedding(p("embedding"), w.at("tokens"));
  for (int i = 0; i < layers; ++i) {
    const std::string l = "layers." + std::to_string(i) + ".";
    at::Tensor h = norm(x, l + "attention_norm");
    const auto project = [&](const std::string& name) {
      return at::einsum("bsh,ndh->bsnd", {h, p(l + "attention." + name)});
    };
    const std::int64_t width = p(l + "attention.q").size(1);
    const at::Tensor angle = at::outer(at::arange(x.size(1), at::kDouble),
                                       at::pow(theta, -at::arange(0, width, 2, at::kDouble) /
                                                          static_cast<double>(width)))
                                 .repeat({1, 2})
                                 .unsqueeze(1);
    const auto rotate = [&](const at::Tensor& t) {
      const auto halves = t.chunk(2, -1);
      return t * angle.cos() + at::cat({-halves[1], halves[0]}, -1) * angle.sin();
    };
    const at::Tensor o = plain_attention(rotate(project("q")), rotate(project("k")), project("v"));
    x = x + at::einsum("bsnd,hnd->bsh", {o, p(l + "attention.o")});
    h = norm(x, l + "mlp_norm");
    const at::Tensor gate = at::matmul(h, p(l + "mlp.gate").t());
    x = x + at::matmul(at::silu(gate) * at::matmul(h, p(l + "mlp.up").t()), p(l + "mlp.down").t());
  }
  const at::Tensor logits = at::matmul(norm(x, "norm"), p(tied ? "embedding" : "head").t());
  return at::cross_entropy_loss(logits.flatten(0, 1), w.at("labels").flatten());
}

at::Tensor plain_gpt(const Given& w, int layers, bool tied) {
  const auto p = [&](const std::string& name) { return w.at(name); };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor centred = x - x.mean(-1, true);
    return centred * at::rsqrt(centred.pow(2).mean(-1, true) + 1e-5) * p(name + ".weight") +
           p(name + ".bias");
  };
  at::Tensor x = at::embedding(p("embedding.weight"), w.at("tokens"));
  x = x + p("positions.weight").slice(0, 0, x.size(1));
  for (int i = 0; i < layers; ++i) {
    const std::string l = "layers." + std::to_string(i) + ".";
    at::Tensor h = norm(x, l + "attention_norm");
    const auto project = [&](const std::string& name) {
      return at::einsum("bsh,ndh->bsnd", {h, p(l + "attention." + name + ".weight")}) +
             p(l + "attention." + name + ".bias");
    };
    const at::Tensor o = plain_attention(project("q"), project("k"), project("v"));
    x = x + at::einsum("bsnd,hnd->bsh", {o, p(l + "attention.o.weight")}) +
        p(l + "attention.o.bias");
    h = norm(x, l + "mlp_norm");
    h = at::gelu(at::matmul(h, p(l + "mlp.up.weight").t()) + p(l + "mlp.up.bias"), "tanh");
    x = x + at::matmul(h, p(l + "mlp.down.weight").t()) + p(l + "mlp.down.bias");
  }
  const at::Tensor head = p(tied ? "embedding.weight" : "head.weight");
  return at::cross_entropy_loss(at::matmul(norm(x, "norm"), head.t()).flatten(0, 1),
                                w.at("labels").flatten());
}

void compare(const Graph& graph, const std::function<at::Tensor(const Given&)>& plain) {
  Given given = start(graph, 3, at::kDouble);
  // Larger than real initial weights, and biases and norms that matter.
  for (int p : graph.parameters()) {
    at::Tensor& t = given[graph.value(p).name];
    t = t + 0.2 * at::randn_like(t);
  }
  const Outcome made = interpret(graph, given);
  const at::AutoGradMode record(true);
  torch::autograd::variable_list leaves;
  for (int p : graph.parameters()) {
    at::Tensor& t = given[graph.value(p).name];
    t = t.clone().requires_grad_(true);
    leaves.push_back(t);
  }
  const at::Tensor loss = plain(given);
  const auto gradients = torch::autograd::grad({loss}, leaves);
  CHECK(std::abs(made.loss.item<double>() / loss.item<double>() - 1) < 1e-13);
  double whole = 0;  // the gradient of all parameters
  for (const at::Tensor& gradient : gradients)
    whole = std::hypot(whole, gradient.norm().item<double>());
  std::size_t next = 0;
  for (int p : graph.parameters()) {
    const at::Tensor& expected = gradients[next++];
    const at::Tensor& got = made.gradients.at(graph.value(p).name);
    INFO(graph.value(p).name);
    REQUIRE(got.defined());
    // The gradient of a key's bias is nought, up to rounding:
    // it shifts all scores of a query alike.
    CHECK((got - expected).norm().item<double>() <
          1e-12 * std::max(expected.norm().item<double>(), 1e-2 * whole));
  }
}

TEST_CASE("a Llama graph is Llama") {
  const bool tied = GENERATE(false, true);
  const int kv_heads = GENERATE(1, 2, 4);
  const Json given{{"layers", 2}, {"hidden", 16}, {"heads", 4},   {"kv_heads", kv_heads},
                   {"ffn", 24},   {"vocab", 19},  {"tied", tied}, {"rope_theta", 500.0}};
  const Graph graph = build("llama", given);
  compare(graph, [&](const Given& w) { return plain_llama(w, 2, tied, 500); });
}

TEST_CASE("a GPT graph is GPT-2") {
  const bool tied = GENERATE(false, true);
  Json given{{"layers", 2}, {"hidden", 16}, {"heads", 4}, {"vocab", 19}, {"tied", tied}};
  const int positions = GENERATE(0, 10);
  if (positions > 0) given["positions"] = positions;
  const Graph graph = build("gpt", given);
  CHECK(graph.size("ffn") == 64);
  CHECK(graph.size("positions") == (positions > 0 ? positions : 6));
  compare(graph, [&](const Given& w) { return plain_gpt(w, 2, tied); });
}

TEST_CASE("fp32 is near fp64, from the same initial weights") {
  const Graph graph =
      build("llama", {{"layers", 2}, {"hidden", 32}, {"heads", 4}, {"ffn", 48}, {"vocab", 30}});
  Given wide = start(graph, 5, at::kDouble), narrow = wide;
  for (int p : graph.parameters()) {
    at::Tensor& t = narrow[graph.value(p).name];
    t = t.to(at::kFloat);
  }
  const Outcome a = interpret(graph, wide), b = interpret(graph, narrow);
  CHECK(b.loss.item<double>() == Approx(a.loss.item<double>()).epsilon(1e-6));
  CHECK(a.loss.item<double>() == Approx(std::log(30)).epsilon(0.03));
  for (const auto& [name, gradient] : a.gradients) {
    INFO(name);
    CHECK((b.gradients.at(name).to(at::kDouble) - gradient).norm().item<double>() <
          2e-5 * gradient.norm().item<double>());
  }
}

TEST_CASE("bf16 runs, roughly") {
  for (const char* kind : {"llama", "gpt"}) {
    const Graph graph =
        build(kind, {{"layers", 1}, {"hidden", 32}, {"heads", 4}, {"ffn", 48}, {"vocab", 30}});
    Given given = start(graph, 5, at::kBFloat16);
    Given wide = given;
    for (int p : graph.parameters())
      wide[graph.value(p).name] = given[graph.value(p).name].to(at::kDouble);
    const Outcome a = interpret(graph, given), b = interpret(graph, wide);
    CHECK(a.loss.item<double>() == Approx(b.loss.item<double>()).epsilon(0.02));
    for (const auto& [name, gradient] : b.gradients) {
      // A key's bias has no gradient: it shifts all scores of a query alike.
      if (name.find("attention.k.bias") != std::string::npos) continue;
      INFO(kind << " " << name);
      CHECK((a.gradients.at(name).to(at::kDouble) - gradient).norm().item<double>() <
            0.1 * gradient.norm().item<double>());
    }
  }
}

TEST_CASE("parameters: counts, names, and where Hugging Face has them") {
  const std::int64_t L = 3, h = 16, f = 24, V = 19, n = 4, kv = 2, d = h / n;
  const Graph llama = build(
      "llama",
      {{"layers", L}, {"hidden", h}, {"heads", n}, {"kv_heads", kv}, {"ffn", f}, {"vocab", V}});
  CHECK(llama.parameter_count() ==
        2 * V * h + h + L * (2 * h + 2 * h * n * d + 2 * h * kv * d + 3 * h * f));
  const Graph gpt =
      build("gpt", {{"layers", L}, {"hidden", h}, {"heads", n}, {"vocab", V}, {"positions", 8}});
  CHECK(gpt.parameter_count() ==
        V * h + 8 * h + 2 * h + L * (4 * h + 4 * h * h + 4 * h + 2 * h * 4 * h + 4 * h + h));
  for (const Graph* graph : {&llama, &gpt}) {
    std::set<std::string> names, theirs;
    for (const Value& value : graph->values()) CHECK(names.insert(value.name).second);
    for (int p : graph->parameters()) {
      const HfName& hf = graph->value(p).hf;
      REQUIRE(!hf.name.empty());
      CHECK(theirs.insert(hf.name + ":" + std::to_string(hf.part)).second);
      CHECK(hf.part < hf.parts);
    }
  }
  const auto hf = [](const Graph& graph, const char* name) {
    return graph.value(graph.find(name)).hf;
  };
  CHECK(hf(llama, "layers.2.attention.k.weight").name == "model.layers.2.self_attn.k_proj.weight");
  CHECK(hf(llama, "layers.0.mlp_norm.weight").name ==
        "model.layers.0.post_attention_layernorm.weight");
  CHECK(hf(llama, "head.weight").name == "lm_head.weight");
  CHECK(hf(gpt, "layers.1.attention.v.weight").name == "h.1.attn.c_attn.weight");
  CHECK(hf(gpt, "layers.1.attention.v.weight").part == 2);
  CHECK(hf(gpt, "layers.1.attention.v.weight").transposed);
  CHECK(!hf(gpt, "layers.1.attention.v.bias").transposed);
  CHECK(gpt.find("head.weight") == -1);
  // GPT-2 scales the projections into the stream.
  CHECK(gpt.value(gpt.find("layers.0.mlp.down.weight")).init.std == Approx(0.02 / std::sqrt(6.0)));
  CHECK(gpt.find("nothing") == -1);
}

TEST_CASE("a graph's dims, layers and flops") {
  const Graph graph = build(
      "llama", {{"layers", 3}, {"hidden", 16}, {"heads", 4}, {"ffn", 24}, {"vocab", 19}}, 2, 6);
  CHECK(graph.layers == 3);
  CHECK(!graph.dims().at("vocab").even);
  CHECK(!graph.dims().at("ffn").even);
  CHECK(graph.dims().at("heads").even);
  CHECK(graph.dims().at("batch").even);
  CHECK_THROWS_AS(graph.size("nothing"), std::out_of_range);
  double flops = 0;
  int last = -1;
  for (const Op& op : graph.ops()) {
    CHECK(op.layer >= last);
    last = op.layer;
    LocalDims dims;
    for (Dim dim : op.space()) dims.set({dim, 0, graph.size(dim), graph.size(dim)});
    const OpTraits traits = op.type->traits(op);
    flops += op.type->cost(op, Piece::forward, dims, 4).flops;
    if (traits.splits) {
      flops += op.type->cost(op, Piece::dgrad, dims, 4).flops;
      flops += op.type->cost(op, Piece::wgrad, dims, 4).flops;
    } else if (traits.differentiable) {
      flops += op.type->cost(op, Piece::backward, dims, 4).flops;
    }
  }
  CHECK(last == 3);
  // 6 per matrix parameter and token, and 12 l h s per token for attention [PaLM, appendix B].
  const double matrices = 3 * (4 * 16 * 16 + 3 * 16 * 24) + 19 * 16;
  CHECK(flops == 12 * (6 * matrices + 12 * 3 * 16 * 6));
}

TEST_CASE("models refuse what cannot be, with the numbers") {
  const auto refused = [](const char* kind, const Json& given) -> std::string {
    try {
      build(kind, given);
    } catch (const Error& error) {
      CHECK(error.exit_code() == 2);
      return test::codes(error.problems());
    }
    return "";
  };
  Json given{{"layers", 2}, {"hidden", 20}, {"heads", 3}, {"ffn", 24}, {"vocab", 19}};
  CHECK(refused("llama", given) == "option.divides model.heads");
  given["heads"] = 4;
  CHECK(refused("llama", given) == "model.odd model.heads");
  given["hidden"] = 16;
  given["kv_heads"] = 3;
  CHECK(refused("llama", given) == "option.divides model.kv_heads");
  given["kv_heads"] = 8;
  CHECK(refused("llama", given) == "option.divides model.kv_heads");
  given["kv_heads"] = 2;
  CHECK(refused("llama", given).empty());
  given["layers"] = 0;
  given["wat"] = 1;
  CHECK(refused("llama", given) == "option.unknown model.wat; option.range model.layers");
  const Json gpt{{"layers", 1}, {"hidden", 16}, {"heads", 4}, {"vocab", 19}, {"positions", 4}};
  CHECK(refused("gpt", gpt) == "option.range positions");
}

}  // namespace
}  // namespace mw::test
