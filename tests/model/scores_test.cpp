// Ops around scores: a bias and sinks of attention, distances, a softmax over a dim, the largest.
#include <cmath>

#include <catch2/catch.hpp>

#include "model/op_case.h"

using namespace mw;
using namespace mw::test;

namespace {

// A view of the bias as ([batch,] heads, seq, keys), of size 1 where it lacks a dim.
at::Tensor by_scores(const at::Tensor& bias, const Dims& dims) {
  if (dims == Dims{"seq", "keys", "heads"}) return bias.permute({2, 0, 1});
  if (dims == Dims{"batch", "keys"}) return bias.unsqueeze(1).unsqueeze(1);
  if (dims == Dims{"heads"}) return bias.view({-1, 1, 1});
  return bias.unsqueeze(0);  // (seq, keys)
}

}  // namespace

TEST_CASE("attention with a bias and with sinks", "[kernels]") {
  const Dims of_bias = GENERATE(Dims{"seq", "keys", "heads"}, Dims{"heads"}, Dims{"seq", "keys"},
                                Dims{"batch", "keys"});
  const bool bias = GENERATE(false, true), sinks = GENERATE(false, true);
  AttentionLimits limits =
      GENERATE(AttentionLimits{}, AttentionLimits{3, 1.5, true}, AttentionLimits{0, 0, false});
  limits.bias = bias;
  limits.sinks = sinks;
  const Dims q{"batch", "seq", "heads", "head_dim"}, k{"batch", "keys", "kv_heads", "head_dim"};
  std::vector<Dims> inputs{q, k, k};
  if (bias) inputs.push_back(of_bias);
  if (sinks) inputs.push_back({"heads"});
  OpCase c(unfused_attention(limits), inputs, {q},
           {{"batch", 2}, {"seq", 7}, {"keys", 7}, {"heads", 4}, {"kv_heads", 2}, {"head_dim", 6}});
  for (std::size_t i = 0; i < inputs.size(); ++i) c.real(i);
  check_op(c, [&](const Tensors& in) {
    const at::Tensor keys = in[1].repeat_interleave(2, 2), values = in[2].repeat_interleave(2, 2);
    at::Tensor scores = at::einsum("bqhd,bkhd->bhqk", {in[0], keys}) / std::sqrt(6.0);
    if (limits.softcap > 0) scores = at::tanh(scores / limits.softcap) * limits.softcap;
    if (bias) scores = scores + by_scores(in[3], of_bias);
    if (limits.causal) {
      at::Tensor hidden = at::ones({7, 7}, at::kBool).triu(1);
      if (limits.window > 0)
        hidden = hidden.logical_or(at::ones({7, 7}, at::kBool).tril(-limits.window));
      scores = scores.masked_fill(hidden, -INFINITY);
    }
    if (sinks) {
      const at::Tensor column = in.back().view({1, 4, 1, 1}).expand({2, 4, 7, 1});
      scores = at::softmax(at::cat({scores, column}, -1), -1).narrow(-1, 0, 7);
    } else {
      scores = at::softmax(scores, -1);
    }
    return Tensors{at::einsum("bhqk,bkhd->bqhd", {scores, values})};
  });
}

TEST_CASE("the gradient of sinks is not lost in bf16", "[kernels]") {
  // A sink beside 512 keys has a share of about 1 / 500.
  const Dims q{"batch", "seq", "heads", "head_dim"}, k{"batch", "keys", "heads", "head_dim"};
  AttentionLimits limits{0, 0, false};
  limits.sinks = true;
  OpCase c(unfused_attention(limits), {q, k, k, {"heads"}}, {q},
           {{"batch", 1}, {"seq", 64}, {"keys", 512}, {"heads", 4}, {"head_dim", 16}});
  for (std::size_t i = 0; i < 4; ++i) c.real(i);
  const auto gradient = [&](at::ScalarType type) {
    OpCase typed = in_type(c, type);
    typed.wants = {false, false, false, true};
    const Tensors given{at::ones(typed.shape(typed.op.output_dims[0]), type)};
    return lemmas::run(typed, given, Into::fresh).inputs[3].to(at::kDouble);
  };
  const at::Tensor exact = gradient(at::kDouble), half = gradient(at::kBFloat16);
  CHECK((half - exact).norm().item<double>() < 0.1 * exact.norm().item<double>());
}

TEST_CASE("rows by their numbers", "[kernels]") {
  OpCase c(gather(), {{"batch", "from", "hidden"}, {"batch", "to"}}, {{"batch", "to", "hidden"}},
           {{"batch", 3}, {"from", 5}, {"to", 7}, {"hidden", 4}});
  c.real(0);
  c.index(1, 5);
  const auto plain = [](const Tensors& in) {
    return Tensors{in[0].gather(1, in[1].unsqueeze(-1).expand({-1, -1, 4}))};
  };
  check_op(c, plain);
  check_memory(c, at::kFloat);
  check_memory(c, at::kBFloat16);
}

TEST_CASE("rows to their places, those of one place added", "[kernels]") {
  OpCase c(scatter(), {{"batch", "from", "of", "hidden"}, {"batch", "from", "of"}},
           {{"batch", "to", "hidden"}},
           {{"batch", 3}, {"from", 5}, {"of", 2}, {"to", 7}, {"hidden", 4}});
  c.real(0);
  c.index(1, 7);
  check_op(c, [](const Tensors& in) {
    return Tensors{
        at::zeros({3, 7, 4}, in[0].options())
            .scatter_add(1, in[1].view({3, 10, 1}).expand({-1, -1, 4}), in[0].reshape({3, 10, 4}))};
  });
  check_memory(c, at::kFloat);
  check_memory(c, at::kBFloat16);
}

TEST_CASE("the mean and the largest of neighbours", "[kernels]") {
  const bool max = GENERATE(false, true);
  OpCase c(pool(max), {{"batch", "of", "hidden"}}, {{"batch", "to", "hidden"}},
           {{"batch", 3}, {"of", 12}, {"to", 4}, {"hidden", 5}});
  c.real(0);
  check_op(c, [&](const Tensors& in) {
    const at::Tensor groups = in[0].view({3, 4, 3, 5});
    return Tensors{max ? groups.amax(2) : groups.mean(2)};
  });
  check_memory(c, at::kFloat);
  check_memory(c, at::kBFloat16);
}

TEST_CASE("a softmax over any dim, and the largest over dims", "[kernels]") {
  const std::map<std::string, std::int64_t> sizes{
      {"batch", 3}, {"seq", 5}, {"rows", 4}, {"hidden", 6}};
  const Dims x{"batch", "seq", "rows", "hidden"};
  const int place = GENERATE(1, 2, 3);
  OpCase c(softmax(x[static_cast<std::size_t>(place)]), {x}, {x},
           {{"batch", 3}, {"seq", 5}, {"rows", 4}, {"hidden", 6}});
  c.real(0);
  check_op(c, [&](const Tensors& in) { return Tensors{at::softmax(in[0], place)}; });
  OpCase largest_of(largest(), {x}, {{"batch", "rows"}},
                    {{"batch", 3}, {"seq", 5}, {"rows", 4}, {"hidden", 6}});
  largest_of.real(0);
  check_op(largest_of, [](const Tensors& in) { return Tensors{at::amax(in[0], {1, 3})}; });
}

TEST_CASE("distances, and the buckets that transformers' T5 puts them in") {
  const std::vector<std::int64_t> far{300, 127, 90, 64, 40, 20, 17, 16,  15,  9,   8,    7,
                                      3,   1,   0,  -1, -2, -7, -8, -12, -30, -64, -127, -500};
  const std::vector<std::int64_t> causal{31, 31, 29, 26, 23, 17, 16, 16, 15, 9, 8, 7,
                                         3,  1,  0,  0,  0,  0,  0,  0,  0,  0, 0, 0};
  const std::vector<std::int64_t> both{15, 15, 14, 14, 12, 10, 10, 10, 9,  8,  8,  7,
                                       3,  1,  0,  17, 18, 23, 24, 25, 27, 30, 31, 31};
  const auto made = [&](const DistanceBuckets& options) {
    const std::int64_t length = 1000, query = 499;
    OpCase c(distance(options), {{"seq"}}, {{"seq", "keys"}}, {{"seq", 1}, {"keys", length}});
    c.inputs[0] = at::full({1}, query, at::kLong);
    const at::Tensor row = forward(c).outputs[0][0];
    std::vector<std::int64_t> found;
    for (std::int64_t one : far)
      found.push_back(row[query - one].to(at::kLong).item<std::int64_t>());
    return found;
  };
  CHECK(made({}) == far);
  CHECK(made({32, 128, true}) == causal);
  CHECK(made({32, 128, false}) == both);
}
