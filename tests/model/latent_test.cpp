// Latent attention: its ops one by one, and the whole of it against DeepSeek-V3 written
// plainly, in float64.
#include <torch/csrc/autograd/autograd.h>

#include <ATen/core/grad_mode.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "interpreter.h"
#include "meshwright/model.h"
#include "meshwright/ops.h"
#include "op_case.h"
#include "support/registered.h"

using namespace mw;
using namespace mw::test;

namespace {

// Pairs (2 i, 2 i + 1) of the last dim of (batch, seq, heads, width) turned, as complex numbers.
at::Tensor turn(const at::Tensor& x, double theta) {
  const std::int64_t width = x.size(-1);
  const at::Tensor angle =
      at::outer(at::arange(x.size(1), at::kDouble),
                at::pow(theta, -at::arange(0, width, 2, at::kDouble) / double(width)))
          .unsqueeze(1);
  const at::Tensor pairs = at::view_as_complex(x.unflatten(-1, {-1, 2}).contiguous());
  return at::view_as_real(pairs * at::polar(at::ones_like(angle), angle)).flatten(-2);
}

Tensors tables(std::int64_t seq, std::int64_t width, RopePairs pairs, double theta) {
  OpCase table(rope_table({theta, pairs}), {{"seq"}}, {{"seq", "turned"}, {"seq", "turned"}},
               {{"seq", seq}, {"turned", width}});
  table.inputs[0] = at::arange(seq, at::kLong);
  return run(table, {}, Into::fresh).outputs;
}

OpCase rope_case(RopePairs pairs, bool heads, std::int64_t width, std::int64_t turned) {
  const std::int64_t seq = 40;
  Dims x{"batch", "seq", "heads", "width"};
  if (!heads) x.erase(x.begin() + 2);
  OpCase c(rope(pairs), {x, {"seq", "turned"}, {"seq", "turned"}}, {x},
           {{"batch", 3}, {"seq", seq}, {"heads", 2}, {"width", width}, {"turned", turned}});
  c.real(0);
  const Tensors made = tables(seq, turned, pairs, 500);
  c.inputs[1] = made[0];
  c.inputs[2] = made[1];
  return c;
}

OpCase uneven_attention(std::int64_t seq, std::int64_t q0, std::int64_t q, std::int64_t width,
                        std::int64_t value) {
  OpCase c(attention(),
           {{"batch", "seq", "heads", "qk"},
            {"batch", "keys", "kv_heads", "qk"},
            {"batch", "keys", "kv_heads", "value"}},
           {{"batch", "seq", "heads", "value"}},
           {{"batch", 2},
            {"seq", seq},
            {"keys", seq},
            {"heads", 6},
            {"kv_heads", 6},
            {"qk", width},
            {"value", value}});
  c.cut("seq", q0, q, seq);
  for (std::size_t i = 0; i < 3; ++i) c.real(i);
  return c;
}

at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           std::int64_t first) {
  const at::Tensor query = at::arange(first, first + q.size(1)).unsqueeze(1);
  const at::Tensor hidden = at::arange(k.size(1)).unsqueeze(0).gt(query);
  const at::Tensor scores =
      at::einsum("bsnd,btnd->bnst", {q, k}) / std::sqrt(static_cast<double>(q.size(-1)));
  return at::einsum("bnst,btnd->bsnd", {scores.masked_fill(hidden, -INFINITY).softmax(-1), v});
}

}  // namespace

TEST_CASE("rope turns neighbours, and the end of a head alone", "[kernels]") {
  const bool heads = GENERATE(true, false);
  const std::int64_t width = GENERATE(4, 10);
  const OpCase c = rope_case(RopePairs::neighbours, heads, width, 4);
  check_op(c, [&](const Tensors& in) {
    const at::Tensor x = heads ? in[0] : in[0].unsqueeze(2);
    const at::Tensor y =
        at::cat({x.narrow(-1, 0, width - 4), turn(x.narrow(-1, width - 4, 4), 500)}, -1);
    return Tensors{heads ? y : y.squeeze(2)};
  });
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) check_memory(c, type);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    check_memory(rope_case(RopePairs::halves, heads, width, 4), type);
  }
  const at::Tensor seed = at::randn_like(c.inputs[0]);
  const at::Tensor expected = run(c, {seed}, Into::fresh).inputs[0];
  at::Tensor over = seed.clone();
  OpCall call{c.dims, c.inputs, {}, {}, {over}, {over, {}, {}}, c.wants, {}, false};
  c.op.type->backward(c.op, call);
  CHECK(error(over, expected) < 1e-12);
}

TEST_CASE("split", "[kernels]") {
  OpCase c(split(), {{"batch", "seq", "both"}}, {{"batch", "seq", "one"}, {"batch", "seq", "two"}},
           {{"batch", 3}, {"seq", 30}, {"both", 20}, {"one", 14}, {"two", 6}});
  c.real(0);
  check_op(c, [](const Tensors& in) {
    return Tensors{in[0].narrow(-1, 0, 14), in[0].narrow(-1, 14, 6)};
  });
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) check_memory(c, type);
}

TEST_CASE("keys and values of a latent", "[kernels]") {
  OpCase c(latent_keys(), {{"batch", "seq", "heads", "kv"}, {"batch", "seq", "turned"}},
           {{"batch", "seq", "heads", "qk"}, {"batch", "seq", "heads", "value"}},
           {{"batch", 3},
            {"seq", 30},
            {"heads", 4},
            {"kv", 18},
            {"turned", 6},
            {"qk", 14},
            {"value", 10}});
  c.real(0);
  c.real(1);
  check_op(c, [](const Tensors& in) {
    const at::Tensor turned = in[1].unsqueeze(2).expand({3, 30, 4, 6});
    return Tensors{at::cat({in[0].narrow(-1, 0, 8), turned}, -1), in[0].narrow(-1, 8, 10)};
  });
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) check_memory(c, type);
}

TEST_CASE("attention whose values have a width of their own", "[kernels]") {
  const auto [width, value] =
      GENERATE(table<std::int64_t, std::int64_t>({{12, 8}, {8, 12}, {6, 1}}));
  const auto [first, queries] =
      GENERATE(table<std::int64_t, std::int64_t>({{0, 40}, {0, 15}, {15, 25}, {10, 10}}));
  const OpCase c = uneven_attention(40, first, queries, width, value);
  check_op(c, [first = first](const Tensors& in) {
    return Tensors{plain_attention(in[0], in[1], in[2], first)};
  });
}

TEST_CASE("... declares the memory that the allocator sees", "[kernels]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const auto [width, value] = GENERATE(table<std::int64_t, std::int64_t>({{32, 16}, {16, 32}}));
  const auto [seq, first, queries] = GENERATE(table<std::int64_t, std::int64_t, std::int64_t>(
      {{128, 0, 128}, {800, 0, 800}, {128, 0, 64}, {128, 64, 64}, {128, 32, 32}}));
  check_memory(uneven_attention(seq, first, queries, width, value), type);
}

TEST_CASE("a graph of latent attention is DeepSeek-V3's", "[kernels]") {
  const bool narrow_queries = GENERATE(true, false);
  Json given{{"layers", 1},         {"hidden", 16},          {"heads", 3},
             {"ffn", 24},           {"vocab", 19},           {"experts", 1},
             {"top_k", 1},          {"balance", "none"},     {"expert_ffn", 12},
             {"rope_theta", 500.0}, {"kv_lora_rank", 10},    {"qk_nope_head_dim", 6},
             {"v_head_dim", 5},     {"qk_rope_head_dim", 4}, {"norm_eps", 1e-6}};
  if (narrow_queries) given["q_lora_rank"] = 7;
  const Graph graph = test::made<Model>("model", "moe", given)->build(2, 6, 12);
  std::map<std::string, at::Tensor> w = start(graph, 3, at::kDouble);
  for (int p : graph.parameters()) {
    at::Tensor& t = w[graph.value(p).name];
    if (!graph.value(p).counts) t = t + 0.2 * at::randn_like(t);
  }
  // Every value up to the end of attention, from the graph; the same, plainly.
  const int last = graph.find("layers.0.attention_add");
  REQUIRE(last >= 0);
  std::vector<at::Tensor> made(graph.values().size());
  for (std::size_t v = 0; v < made.size(); ++v) {
    if (graph.values()[v].source != Value::Source::op) made[v] = w.at(graph.values()[v].name);
  }
  for (const Op& op : graph.ops()) {
    LocalDims dims;
    for (Dim dim : op.space()) dims.set({dim, 0, graph.size(dim), graph.size(dim)});
    OpCall call{dims, {}, {}, {}, {}, {}, {}, {}, false, at::kDouble};
    for (const Use& use : op.inputs) call.inputs.push_back(made[use.value]);
    op.type->forward(op, call);
    for (std::size_t o = 0; o < op.outputs.size(); ++o) made[op.outputs[o]] = call.outputs[o];
    if (made[last].defined()) break;
  }
  const auto p = [&](const std::string& name) {
    return w.at("layers.0.attention" + name + ".weight");
  };
  const auto norm = [](const at::Tensor& x, const at::Tensor& weight) {
    return x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * weight;
  };
  const at::Tensor x = at::embedding(w.at("embedding.weight"), w.at("tokens"));
  const at::Tensor h = norm(x, p("_norm"));
  at::Tensor q = h;
  if (narrow_queries) q = norm(at::matmul(h, p(".q_down").t()), p(".q_norm"));
  q = at::einsum("bsr,ndr->bsnd", {q, p(".q")});
  q = at::cat({q.narrow(-1, 0, 6), turn(q.narrow(-1, 6, 4), 500)}, -1);
  const at::Tensor down = at::matmul(h, p(".kv_down").t());
  const at::Tensor shared = turn(down.narrow(-1, 10, 4).unsqueeze(2), 500);
  const at::Tensor kv =
      at::einsum("bsr,ndr->bsnd", {norm(down.narrow(-1, 0, 10), p(".kv_norm")), p(".kv")});
  const at::Tensor k = at::cat({kv.narrow(-1, 0, 6), shared.expand({2, 6, 3, 4})}, -1);
  const at::Tensor o = plain_attention(q, k, kv.narrow(-1, 6, 5), 0);
  const at::Tensor y = x + at::einsum("bsnd,hnd->bsh", {o, p(".o")});
  CHECK(error(made[last], y) < 1e-13);
  CHECK(graph.value(graph.find("layers.0.attention.kv.weight")).hf.name ==
        "model.layers.0.self_attn.kv_b_proj.weight");
}
