// Every op's kernels against a plain composite that torch differentiates, in float64.
#include <ATen/Parallel.h>
#include <catch2/catch.hpp>
#include <cmath>

#include "meshwright/autograd_op.h"
#include "meshwright/ops.h"
#include "op_case.h"

using namespace mw;
using namespace mw::test;

TEST_CASE("linear", "[kernels]") {
  const bool biased = GENERATE(false, true);
  std::vector<Dims> inputs{{"batch", "seq", "hidden"}, {"heads", "head_dim", "hidden"}};
  if (biased) inputs.push_back({"heads", "head_dim"});
  OpCase c(linear(), inputs, {{"batch", "seq", "heads", "head_dim"}},
           {{"batch", 3}, {"seq", 5}, {"hidden", 12}, {"heads", 4}, {"head_dim", 3}});
  for (std::size_t i = 0; i < inputs.size(); ++i) c.real(i);
  check_op(c, [&](const Tensors& in) {
    at::Tensor y = at::einsum("bsh,ndh->bsnd", {in[0], in[1]});
    return Tensors{biased ? y + in[2] : y};
  });
}

TEST_CASE("linear contracts several dims, and one row is enough", "[kernels]") {
  OpCase c(linear(), {{"batch", "seq", "heads", "head_dim"}, {"hidden", "heads", "head_dim"}},
           {{"batch", "seq", "hidden"}},
           {{"batch", 1}, {"seq", 1}, {"hidden", 7}, {"heads", 3}, {"head_dim", 2}});
  c.real(0);
  c.real(1);
  check_op(c, [](const Tensors& in) {
    return Tensors{at::einsum("bsnd,hnd->bsh", {in[0], in[1]})};
  });
}

TEST_CASE("rms_norm", "[kernels]") {
  const std::int64_t hidden = GENERATE(2, 10, 64, 3000);  // the last: several chunks
  OpCase c(rms_norm(1e-5), {{"batch", "seq", "hidden"}, {"hidden"}}, {{"batch", "seq", "hidden"}},
           {{"batch", 3}, {"seq", 7}, {"hidden", hidden}});
  c.real(0);
  c.real(1);
  check_op(c, [](const Tensors& in) {
    return Tensors{in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + 1e-5) * in[1]};
  });
}

TEST_CASE("layer_norm", "[kernels]") {
  OpCase c(layer_norm(1e-5), {{"batch", "seq", "hidden"}, {"hidden"}, {"hidden"}},
           {{"batch", "seq", "hidden"}}, {{"batch", 3}, {"seq", 7}, {"hidden", 20}});
  for (std::size_t i = 0; i < 3; ++i) c.real(i);
  check_op(c, [](const Tensors& in) {
    const at::Tensor centred = in[0] - in[0].mean(-1, true);
    return Tensors{centred * at::rsqrt(centred.pow(2).mean(-1, true) + 1e-5) * in[1] + in[2]};
  });
}

TEST_CASE("embedding over a whole and a cut vocab", "[kernels]") {
  const auto [offset, size] =
      GENERATE(table<std::int64_t, std::int64_t>({{0, 11}, {0, 4}, {4, 4}, {8, 3}, {11, 0}}));
  const std::int64_t hidden = GENERATE(4, 40);  // ATen adds short rows in another way
  OpCase c(embedding(), {{"batch", "seq"}, {"vocab", "hidden"}}, {{"batch", "seq", "hidden"}},
           {{"batch", 3}, {"seq", 50}, {"vocab", 11}, {"hidden", hidden}});
  c.cut("vocab", offset, size, 11);
  c.index(0, 11);
  c.real(1);
  const std::int64_t first = offset, held = size;
  check_op(c, [=](const Tensors& in) {
    at::Tensor full = at::constant_pad_nd(in[1], {0, 0, first, 11 - first - held});
    return Tensors{at::embedding(full, in[0])};
  });
}

TEST_CASE("add_positions", "[kernels]") {
  OpCase c(add_positions(), {{"batch", "seq", "hidden"}, {"seq"}, {"positions", "hidden"}},
           {{"batch", "seq", "hidden"}},
           {{"batch", 3}, {"seq", 5}, {"hidden", 20}, {"positions", 9}});
  c.real(0);
  c.real(2);
  c.inputs[1] = at::arange(3, 8, at::kLong);  // this rank's part of a cut sequence
  check_op(c, [](const Tensors& in) { return Tensors{in[0] + in[2].index_select(0, in[1])}; });
}

TEST_CASE("rope turns the halves of a head", "[kernels]") {
  const std::int64_t width = GENERATE(2, 6, 8, 32);
  const std::int64_t seq = GENERATE(5, 3000);  // the last: several chunks of one sequence
  OpCase table(rope_table(10000), {{"seq"}}, {{"seq", "head_dim"}, {"seq", "head_dim"}},
               {{"seq", seq}, {"head_dim", width}});
  table.inputs[0] = at::arange(seq, at::kLong);
  const Tensors tables = run(table, {}, Into::fresh).outputs;
  OpCase c(rope(),
           {{"batch", "seq", "heads", "head_dim"}, {"seq", "head_dim"}, {"seq", "head_dim"}},
           {{"batch", "seq", "heads", "head_dim"}},
           {{"batch", 3}, {"seq", seq}, {"heads", 2}, {"head_dim", width}});
  c.real(0);
  c.inputs[1] = tables[0];
  c.inputs[2] = tables[1];
  // As Hugging Face's Llama writes it, from the angles.
  const at::Tensor inverse =
      at::pow(10000.0, at::arange(0, width, 2, at::kDouble) / static_cast<double>(width))
          .reciprocal();
  const at::Tensor angle =
      at::outer(at::arange(seq, at::kDouble), inverse).repeat({1, 2}).unsqueeze(1);
  check_op(c, [=](const Tensors& in) {
    const auto halves = in[0].chunk(2, -1);
    return Tensors{in[0] * angle.cos() + at::cat({-halves[1], halves[0]}, -1) * angle.sin()};
  });
  SECTION("backward may write over the output's gradient") {
    const at::Tensor seed = at::randn_like(c.inputs[0]);
    const at::Tensor expected = run(c, {seed}, Into::fresh).inputs[0];
    at::Tensor gradient = seed.clone();
    OpCall call{c.dims, c.inputs, {}, {}, {gradient}, {gradient, {}, {}}, c.wants, {}, false};
    c.op.type->backward(c.op, call);
    CHECK(error(gradient, expected) < 1e-12);
  }
}

namespace {

// Queries [q0, q0 + q) of heads [h0, h0 + h) of `heads`; key heads [k0, k0 + k) of `kv_heads`.
struct Cut {
  std::int64_t heads, h0, h, kv_heads, k0, k, seq, q0, q;
};

OpCase attention_case(const Cut& cut, std::int64_t width = 6, std::int64_t batch = 2,
                      const OpTypePtr& type = attention()) {
  OpCase c(type,
           {{"batch", "seq", "heads", "head_dim"},
            {"batch", "keys", "kv_heads", "head_dim"},
            {"batch", "keys", "kv_heads", "head_dim"}},
           {{"batch", "seq", "heads", "head_dim"}},
           {{"batch", batch},
            {"seq", cut.seq},
            {"keys", cut.seq},
            {"heads", cut.heads},
            {"kv_heads", cut.kv_heads},
            {"head_dim", width}});
  c.cut("heads", cut.h0, cut.h, cut.heads);
  c.cut("kv_heads", cut.k0, cut.k, cut.kv_heads);
  c.cut("seq", cut.q0, cut.q, cut.seq);
  for (std::size_t i = 0; i < 3; ++i) c.real(i);
  return c;
}

}  // namespace

namespace {

// Each gradient along a direction is the slope that outputs have along it.
void check_slopes(const OpCase& c) {
  const at::Tensor seed = at::randn(c.shape(c.op.output_dims[0]), at::kDouble);
  const Gradients own = run(c, {seed}, Into::fresh);
  constexpr double step = 1e-5;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const at::Tensor direction = at::randn_like(c.inputs[i]);
    double slope = 0;
    for (const double sign : {1.0, -1.0}) {
      OpCase moved = c;
      moved.inputs[i] = c.inputs[i] + sign * step * direction;
      slope += sign * (run(moved, {seed}, Into::fresh).outputs[0] * seed).sum().item<double>();
    }
    slope /= 2 * step;
    INFO("input " << i);
    CHECK((own.inputs[i] * direction).sum().item<double>() == Approx(slope).epsilon(1e-7));
  }
}

}  // namespace

TEST_CASE("attention: grouped key heads, cut heads, cut queries", "[kernels]") {
  const Cut cut = GENERATE(Cut{4, 0, 4, 4, 0, 4, 9, 0, 9},    // plain
                           Cut{4, 2, 2, 4, 2, 2, 9, 0, 9},    // both cut alike
                           Cut{8, 0, 8, 2, 0, 2, 40, 0, 40},  // grouped, more than one query block
                           Cut{8, 0, 8, 1, 0, 1, 9, 0, 9},    // one key head
                           Cut{8, 4, 4, 2, 1, 1, 9, 0, 9},    // grouped and cut
                           Cut{8, 4, 4, 2, 0, 2, 9, 0, 9},    // whole keys, cut queries: one group
                           Cut{8, 2, 2, 2, 0, 2, 9, 0, 9},    // a part of one group
                           Cut{12, 4, 4, 4, 0, 4, 9, 0, 9},   // heads 4-7 of groups of 3: 1 1 2 2
                           Cut{12, 3, 4, 4, 0, 4, 9, 0, 9},   // 1 1 1 2
                           Cut{6, 2, 2, 6, 0, 6, 9, 0, 9},    // ungrouped, whole keys
                           Cut{4, 0, 4, 4, 0, 4, 9, 0, 4},    // the first queries
                           Cut{4, 0, 4, 4, 0, 4, 9, 4, 5},    // the last ones
                           Cut{8, 0, 8, 2, 0, 2, 9, 3, 3});   // some in the middle, grouped
  const OpTypePtr type = GENERATE(as<OpTypePtr>{}, attention(), unfused_attention());
  OpCase c = attention_case(cut, 6, 2, type);
  check_op(c, [&](const Tensors& in) {
    std::vector<std::int64_t> heads;
    for (std::int64_t i = 0; i < cut.h; ++i) {
      heads.push_back((cut.h0 + i) / (cut.heads / cut.kv_heads) - cut.k0);
    }
    const at::Tensor index = at::tensor(heads, at::kLong);
    const at::Tensor k = in[1].index_select(2, index), v = in[2].index_select(2, index);
    const at::Tensor query = at::arange(cut.q0, cut.q0 + cut.q).unsqueeze(1);
    const at::Tensor hidden = at::arange(cut.seq).unsqueeze(0).gt(query);
    const at::Tensor scores = at::einsum("bsnd,btnd->bnst", {in[0], k}) / std::sqrt(6.0);
    const at::Tensor p = scores.masked_fill(hidden, -INFINITY).softmax(-1);
    return Tensors{at::einsum("bnst,btnd->bsnd", {p, v})};
  });
}

TEST_CASE("attention over a window", "[kernels]") {
  const std::int64_t window = GENERATE(1, 4, 24, 40);
  const auto [first, count] =
      GENERATE(table<std::int64_t, std::int64_t>({{0, 24}, {8, 8}, {16, 8}}));
  OpCase c = attention_case({4, 0, 4, 2, 0, 2, 24, first, count});
  c.op.type = GENERATE(false, true) ? unfused_attention({window}) : attention(window);
  check_op(c, [&, q0 = first, q = count](const Tensors& in) {
    const at::Tensor k = in[1].repeat_interleave(2, 2), v = in[2].repeat_interleave(2, 2);
    const at::Tensor query = at::arange(q0, q0 + q).unsqueeze(1), key = at::arange(24).unsqueeze(0);
    const at::Tensor hidden = key.gt(query).logical_or_(key.le(query - window));
    const at::Tensor scores = at::einsum("bsnd,btnd->bnst", {in[0], k}) / std::sqrt(6.0);
    const at::Tensor p = scores.masked_fill(hidden, -INFINITY).softmax(-1);
    return Tensors{at::einsum("bnst,btnd->bsnd", {p, v})};
  });
}

TEST_CASE("gradients of attention whose scores exist are those of finite differences",
          "[kernels]") {
  // Grouped key heads, cut heads, queries in the middle, and a window.
  const std::int64_t window = GENERATE(0, 3);
  OpCase c = attention_case({8, 2, 4, 4, 1, 2, 7, 2, 3}, 3, 2, unfused_attention({window}));
  check_slopes(c);
}

TEST_CASE("attention over tokens that lie in another order", "[kernels]") {
  using Runs = std::vector<Range>;
  const Runs keys{{0, 6}, {18, 6}, {6, 6}, {12, 6}};
  const std::vector<Runs> parts{keys, Runs{{0, 6}, {18, 6}}, Runs{{6, 12}}};
  const Runs queries = parts[GENERATE(0, 1, 2)];
  const OpTypePtr type = GENERATE(as<OpTypePtr>{}, attention(), unfused_attention());
  OpCase c = attention_case({8, 2, 4, 4, 0, 4, 24, 0, 24}, 6, 2, type);
  c.cut("seq", queries, 24);
  c.cut("keys", keys, 24);
  for (std::size_t i = 0; i < 3; ++i) c.real(i);
  const auto places = [](const std::vector<Range>& runs) {
    Tensors ranges;
    for (const Range& run : runs) ranges.push_back(at::arange(run.offset, run.offset + run.size));
    return at::cat(ranges);
  };
  check_op(c, [&](const Tensors& in) {
    const at::Tensor index = at::tensor({1, 1, 2, 2}, at::kLong);
    const at::Tensor k = in[1].index_select(2, index), v = in[2].index_select(2, index);
    const at::Tensor hidden = places(keys).unsqueeze(0).gt(places(queries).unsqueeze(1));
    const at::Tensor scores = at::einsum("bsnd,btnd->bnst", {in[0], k}) / std::sqrt(6.0);
    const at::Tensor p = scores.masked_fill(hidden, -INFINITY).softmax(-1);
    return Tensors{at::einsum("bnst,btnd->bsnd", {p, v})};
  });
  check_memory(c, at::kDouble);
}

TEST_CASE("swiglu, gelu, add", "[kernels]") {
  const std::int64_t seq = GENERATE(3, 5000);  // the last: several chunks
  const std::map<std::string, std::int64_t> sizes{{"batch", 2}, {"seq", seq}, {"ffn", 5}};
  const Dims dims{"batch", "seq", "ffn"};
  OpCase gated(swiglu(), {dims, dims}, {dims}, sizes);
  gated.real(0);
  gated.real(1);
  check_op(gated, [](const Tensors& in) { return Tensors{in[0] * at::sigmoid(in[0]) * in[1]}; });
  OpCase weighed(swiglu(), {dims, dims, {"batch", "seq"}}, {dims}, sizes);
  for (std::size_t i = 0; i < 3; ++i) weighed.real(i);
  check_op(weighed, [](const Tensors& in) {
    return Tensors{in[0] * at::sigmoid(in[0]) * in[1] * in[2].unsqueeze(-1)};
  });
  // One gradient wanted takes no more than both: what is declared.
  for (OpCase* one : {&gated, &weighed}) {
    for (const std::size_t left_out : {0, 1}) {
      OpCase c = *one;
      c.wants[left_out] = false;
      for (const auto type : {at::kFloat, at::kDouble}) check_memory(c, type);
      if (one == &gated) check_memory(c, at::kBFloat16);  // weights are wider than that
    }
  }
  OpCase bell(gelu(), {dims}, {dims}, sizes);
  bell.real(0);
  check_op(bell, [](const Tensors& in) {
    const at::Tensor inner = std::sqrt(2 / M_PI) * (in[0] + 0.044715 * in[0].pow(3));
    return Tensors{0.5 * in[0] * (1 + at::tanh(inner))};
  });
  OpCase sum(add(), {dims, dims}, {dims}, sizes);
  sum.real(0);
  sum.real(1);
  check_op(sum, [](const Tensors& in) { return Tensors{in[0] + in[1]}; });
}

TEST_CASE("cross-entropy in pieces over any part of the vocab", "[kernels]") {
  const auto [offset, size] =
      GENERATE(table<std::int64_t, std::int64_t>({{0, 11}, {0, 4}, {4, 4}, {8, 3}, {11, 0}}));
  const std::int64_t seq = GENERATE(5, 4000);
  const std::map<std::string, std::int64_t> sizes{
      {"batch", 2}, {"seq", seq}, {"vocab", 11}, {"stat", 2}};
  const Dims rows{"batch", "seq"}, wide{"batch", "seq", "vocab"};
  OpCase max(ce_max(), {wide}, {rows}, sizes);
  max.cut("vocab", offset, size, 11);
  max.real(0);
  if (size > 0) {
    check_op(max, [](const Tensors& in) { return Tensors{std::get<0>(in[0].max(-1))}; });
  } else {
    CHECK(run(max, {}, Into::fresh).outputs[0].eq(-INFINITY).all().item<bool>());
  }
  OpCase stats(ce_stats(), {wide, rows, rows}, {{"stat", "batch", "seq"}}, sizes);
  stats.cut("vocab", offset, size, 11);
  stats.real(0);
  stats.real(1);
  stats.no_grad(1);
  stats.index(2, 11);
  const std::int64_t first = offset, held = size;
  check_op(stats, [=](const Tensors& in) {
    const at::Tensor shifted = in[0] - in[1].unsqueeze(-1);
    const at::Tensor full = at::constant_pad_nd(shifted, {first, 11 - first - held});
    return Tensors{
        at::stack({shifted.exp().sum(-1), full.gather(2, in[2].unsqueeze(-1)).squeeze(-1)})};
  });
}

TEST_CASE("ce_loss", "[kernels]") {
  OpCase c(ce_loss(20), {{"stat", "batch", "seq"}}, {{}}, {{"stat", 2}, {"batch", 2}, {"seq", 5}});
  c.real(0);
  c.inputs[0].abs_().add_(1);
  check_op(c, [](const Tensors& in) { return Tensors{(in[0][0].log() - in[0][1]).sum() / 20}; });
}

TEST_CASE("a loss of the labels that count", "[kernels]") {
  const auto masked = ce_loss(20, 0.5, "tokens", LossDivisor{2, 1})->masked_form();
  REQUIRE(masked);
  CHECK_FALSE(ce_loss(20)->masked_form());
  for (const LossDivisor divisor :
       {LossDivisor{}, LossDivisor{3, 0}, LossDivisor{0, 4}, LossDivisor{12, 34}}) {
    const auto read = LossDivisor::of(divisor.name());
    REQUIRE(read);
    CHECK((read->sequences == divisor.sequences && read->shift == divisor.shift));
  }
  for (const char* other :
       {"loss divisors", "loss divisors of a step from 1", "loss divisors of sequences", "labels"})
    CHECK_FALSE(LossDivisor::of(other));
  OpCase c(masked->type, {{"stat", "batch", "seq"}, {"batch", "seq"}}, {{}},
           {{"stat", 2}, {"batch", 2}, {"seq", 5}});
  c.real(0);
  c.inputs[0].abs_().add_(1);
  c.index(1, 4);
  c.inputs[1][0] = 0;
  check_op(c, [](const Tensors& in) {
    const at::Tensor share = at::where(in[1].gt(0), 1 / in[1].to(at::kDouble), 0.0);
    return Tensors{((in[0][0].log() - in[0][1]) * share.to(in[0].scalar_type())).sum() * 0.5};
  });
  check_memory(c, at::kFloat);
  check_memory(c, at::kBFloat16);
}

TEST_CASE("parts of a vocab, put together, are the whole cross-entropy", "[kernels]") {
  const Dims rows{"batch", "seq"}, wide{"batch", "seq", "vocab"};
  const std::map<std::string, std::int64_t> sizes{
      {"batch", 2}, {"seq", 5}, {"vocab", 11}, {"stat", 2}};
  const at::Tensor logits = at::randn({2, 5, 11}, at::kDouble) * 30;
  const at::Tensor labels = at::randint(11, {2, 5}, at::kLong);
  const std::vector<Range> parts{shard_range(11, 3, 0), shard_range(11, 3, 1),
                                 shard_range(11, 3, 2)};

  at::Tensor shift = at::full({2, 5}, -INFINITY, at::kDouble),
             stats = at::zeros({2, 2, 5}, at::kDouble);
  std::vector<OpCase> cases;
  for (const Range& part : parts) {
    OpCase max(ce_max(), {wide}, {rows}, sizes);
    max.cut("vocab", part.offset, part.size, 11);
    max.inputs[0] = logits.narrow(2, part.offset, part.size).contiguous();
    shift = at::maximum(shift, run(max, {}, Into::fresh).outputs[0]);
  }
  for (const Range& part : parts) {
    OpCase c(ce_stats(), {wide, rows, rows}, {{"stat", "batch", "seq"}}, sizes);
    c.cut("vocab", part.offset, part.size, 11);
    c.inputs = {logits.narrow(2, part.offset, part.size).contiguous(), shift, labels};
    c.wants = {true, false, false};
    stats += run(c, {at::zeros({2, 2, 5}, at::kDouble)}, Into::fresh).outputs[0];
    cases.push_back(c);
  }
  OpCase loss(ce_loss(10), {{"stat", "batch", "seq"}}, {{}}, sizes);
  loss.inputs[0] = stats;
  loss.wants = {true};
  const Gradients made = run(loss, {at::ones({}, at::kDouble)}, Into::fresh);
  const at::Tensor expected = at::cross_entropy_loss(logits.view({10, 11}), labels.view(-1));
  CHECK(error(made.outputs[0], expected) < 1e-13);
  at::Tensor gradient = logits.softmax(-1);
  gradient.scatter_add_(2, labels.unsqueeze(-1), at::full({2, 5, 1}, -1.0, at::kDouble)).div_(10);
  Tensors pieces;
  for (const OpCase& c : cases) pieces.push_back(run(c, {made.inputs[0]}, Into::fresh).inputs[0]);
  CHECK(error(at::cat(pieces, 2), gradient) < 1e-12);
}

TEST_CASE("AutogradOp differentiates what compute does", "[kernels]") {
  struct Squash : AutogradOp {
    std::string kind() const override { return "squash"; }
    Tensors compute(const Op&, const LocalDims&, const Tensors& in) const override {
      return {at::tanh(in[0]) * in[1], in[1].exp()};
    }
  };
  OpCase c(std::make_shared<Squash>(), {{"batch", "ffn"}, {"ffn"}}, {{"batch", "ffn"}, {"ffn"}},
           {{"batch", 4}, {"ffn", 3}});
  c.real(0);
  c.real(1);
  check_op(c, [](const Tensors& in) { return Tensors{at::tanh(in[0]) * in[1], in[1].exp()}; });
}

TEST_CASE("ops declare the memory that the allocator sees", "[kernels]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const auto [batch, seq, hidden, vocab] =
      GENERATE(table<std::int64_t, std::int64_t, std::int64_t, std::int64_t>(
          {{2, 24, 32, 50}, {4, 128, 256, 256}, {1, 300, 96, 1000}}));
  const std::map<std::string, std::int64_t> sizes{
      {"batch", batch}, {"seq", seq},        {"hidden", hidden},
      {"vocab", vocab}, {"ffn", 3 * hidden}, {"heads", hidden / 16},
      {"head_dim", 16}, {"stat", 2},         {"positions", seq}};
  const Dims stream{"batch", "seq", "hidden"}, inner{"batch", "seq", "ffn"};
  const std::int64_t least = std::min(seq, vocab);
  // `reals`: the operands that are not indices; those after a -1 get no gradient.
  const auto check = [&](OpCase c, std::initializer_list<int> reals) {
    bool wanted = true;
    for (int i : reals) {
      if (i < 0) {
        wanted = false;
        continue;
      }
      c.real(i);
      c.wants[i] = wanted;
    }
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      if (!c.inputs[i].defined()) c.index(i, least);
    }
    check_memory(c, type);
  };
  check(OpCase(linear(), {stream, {"ffn", "hidden"}}, {inner}, sizes), {0, 1});
  check(OpCase(linear(), {stream, {"ffn", "hidden"}, {"ffn"}}, {inner}, sizes), {0, 1, 2});
  check(OpCase(rms_norm(1e-5), {stream, {"hidden"}}, {stream}, sizes), {0, 1});
  check(OpCase(layer_norm(1e-5), {stream, {"hidden"}, {"hidden"}}, {stream}, sizes), {0, 1, 2});
  check(OpCase(swiglu(), {inner, inner}, {inner}, sizes), {0, 1});
  check(OpCase(gelu(), {inner}, {inner}, sizes), {0});
  check(OpCase(add(), {stream, stream}, {stream}, sizes), {0, 1});
  check(OpCase(add_positions(), {stream, {"seq"}, {"positions", "hidden"}}, {stream}, sizes),
        {0, 2});
  const Dims table{"seq", "head_dim"}, heads{"batch", "seq", "heads", "head_dim"};
  check(OpCase(rope(), {heads, table, table}, {heads}, sizes), {0, -1, 1, 2});
  {
    OpCase c(embedding(), {{"batch", "seq"}, {"vocab", "hidden"}}, {stream}, sizes);
    check(c, {1});
    c.cut("vocab", vocab / 2, vocab / 4, vocab);
    check(c, {1});
  }
  {
    OpCase c(ce_stats(), {{"batch", "seq", "vocab"}, {"batch", "seq"}, {"batch", "seq"}},
             {{"stat", "batch", "seq"}}, sizes);
    check(c, {0, -1, 1});
    c.cut("vocab", vocab / 2, vocab / 4, vocab);
    check(c, {0, -1, 1});
    OpCase max(ce_max(), {{"batch", "seq", "vocab"}}, {{"batch", "seq"}}, sizes);
    check(max, {0});
    OpCase loss(ce_loss(10), {{"stat", "batch", "seq"}}, {{}}, sizes);
    check(loss, {0});
  }
  OpCase angles(rope_table(10000), {{"seq"}}, {table, table}, sizes);
  check(angles, {});
}

TEST_CASE("attention declares the memory that the allocator sees", "[kernels]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const Cut cut = GENERATE(Cut{4, 0, 4, 4, 0, 4, 128, 0, 128}, Cut{4, 2, 2, 4, 2, 2, 200, 0, 200},
                           Cut{8, 0, 8, 2, 0, 2, 128, 0, 128}, Cut{8, 0, 8, 1, 0, 1, 100, 0, 100},
                           Cut{8, 4, 4, 2, 0, 2, 800, 0, 800}, Cut{8, 2, 2, 2, 0, 2, 90, 0, 90},
                           Cut{12, 3, 4, 4, 0, 4, 128, 0, 128}, Cut{4, 0, 4, 4, 0, 4, 128, 0, 64},
                           Cut{4, 0, 4, 4, 0, 4, 128, 64, 64}, Cut{8, 0, 8, 2, 0, 2, 128, 32, 32});
  const OpTypePtr op = GENERATE(as<OpTypePtr>{}, attention(), unfused_attention());
  check_memory(attention_case(cut, 32, 3, op), type);
}

TEST_CASE("Ops make the same numbers, bit for bit, on one thread and on three", "[kernels]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble);
  at::manual_seed(9);
  const std::map<std::string, std::int64_t> sizes{{"batch", 3},  {"seq", 50},      {"hidden", 701},
                                                  {"heads", 11}, {"head_dim", 64}, {"stat", 2}};
  const Dims rows{"batch", "seq"}, stream{"batch", "seq", "hidden"}, table{"seq", "head_dim"},
      heads{"batch", "seq", "heads", "head_dim"}, stats{"stat", "batch", "seq"};
  const auto check = [&](OpCase c) {
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      if (!c.inputs[i].defined()) c.real(i);
    }
    c = in_type(c, type);
    const Tensors seeds{at::randn(c.shape(c.op.output_dims[0]), type)};
    const auto made = [&](int threads, Into into) {
      at::set_num_threads(threads);
      Tensors before;
      for (const at::Tensor& input : c.inputs) before.push_back(at::ones_like(input));
      const Gradients all = run(c, seeds, into, before);
      Tensors list = all.outputs;
      list.insert(list.end(), all.saved.begin(), all.saved.end());
      list.insert(list.end(), all.inputs.begin(), all.inputs.end());
      return list;
    };
    const int threads = at::get_num_threads();
    for (const Into into : {Into::fresh, Into::added}) {
      const Tensors one = made(1, into), three = made(3, into);
      at::set_num_threads(threads);
      for (std::size_t n = 0; n < one.size(); ++n) {
        INFO(c.op.kind() << ", tensor " << n);
        CHECK(one[n].defined() == three[n].defined());
        if (one[n].defined()) CHECK(at::equal(one[n], three[n]));
      }
    }
  };
  check(OpCase(rms_norm(1e-5), {stream, {"hidden"}}, {stream}, sizes));
  check(OpCase(swiglu(), {stream, stream}, {stream}, sizes));
  check(OpCase(swiglu(), {stream, stream, rows}, {stream}, sizes));
  OpCase turned(rope(), {heads, table, table}, {heads}, sizes);
  for (std::size_t i = 1; i < 3; ++i) {
    turned.real(i);
    turned.no_grad(i);
  }
  check(turned);
  OpCase loss(ce_stats(), {stream, rows, rows}, {stats}, sizes);
  loss.real(1);
  loss.no_grad(1);
  loss.index(2, 701);
  check(loss);
}
