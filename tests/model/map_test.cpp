// Maps (elementwise expressions), sums over dims, concat and as: each against plain ATen, which
// torch differentiates; and what expressions are read as.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>

#include "meshwright/error.h"
#include "meshwright/ops.h"
#include "op_case.h"
#include "plugins/models/ops/expression.h"

using namespace mw;
using namespace mw::test;

namespace {

using Function = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

const std::vector<std::pair<std::string, Function>>& functions() {
  static const std::vector<std::pair<std::string, Function>> all{
      {"a + b", [](const auto& a, const auto& b) { return a + b; }},
      {"a - b", [](const auto& a, const auto& b) { return a - b; }},
      {"2 - a * b", [](const auto& a, const auto& b) { return 2 - a * b; }},
      {"a / (b * b + 1)", [](const auto& a, const auto& b) { return a / (b * b + 1); }},
      {"3 / (a * a + 2) - -b", [](const auto& a, const auto& b) { return 3 / (a * a + 2) + b; }},
      {"silu(a) * b", [](const auto& a, const auto& b) { return at::silu(a) * b; }},
      {"gelu(a) * b", [](const auto& a, const auto& b) { return at::gelu(a, "tanh") * b; }},
      {"gelu_erf(a) + 1e-1 * b",
       [](const auto& a, const auto& b) { return at::gelu(a) + 0.1 * b; }},
      {"softplus(a) * sigmoid(b)",
       [](const auto& a, const auto& b) { return at::softplus(a) * at::sigmoid(b); }},
      {"softcap(a * b, 2.5)",
       [](const auto& a, const auto& b) { return at::tanh(a * b / 2.5) * 2.5; }},
      {"relu(a) + abs(b) + min(a, 0.3) * max(b, -0.2)",
       [](const auto& a, const auto& b) {
         return at::relu(a) + at::abs(b) + at::clamp_max(a, 0.3) * at::clamp_min(b, -0.2);
       }},
      {"max(a, b) - min(a, 2 * b)",
       [](const auto& a, const auto& b) { return at::maximum(a, b) - at::minimum(a, 2 * b); }},
      {"exp(a) * log(b * b + 1) + erf(a)",
       [](const auto& a, const auto& b) { return at::exp(a) * at::log(b * b + 1) + at::erf(a); }},
      {"sqrt(a * a + 1) * rsqrt(square(b) + 2)",
       [](const auto& a, const auto& b) { return at::sqrt(a * a + 1) * at::rsqrt(b * b + 2); }},
      {"sin(a) * cos(b) + tanh(a - b)",
       [](const auto& a, const auto& b) { return at::sin(a) * at::cos(b) + at::tanh(a - b); }},
      {"a ^ 3 - (b * b + 1) ^ -0.5 + (a * a + 1) ^ 1.5",
       [](const auto& a, const auto& b) {
         return a.pow(3) - (b * b + 1).pow(-0.5) + (a * a + 1).pow(1.5);
       }},
  };
  return all;
}

std::string read_and_written(const std::string& text) {
  Expressions read;
  return read.text(read.parse(text));
}

}  // namespace

TEST_CASE("a map of operands that lie alike", "[kernels]") {
  const auto& [text, reference] = functions()[GENERATE(range<std::size_t>(0, functions().size()))];
  INFO(text);
  const std::int64_t hidden = GENERATE(8, 40000);  // the last: several chunks
  if (hidden > 8 && text != "gelu(a) * b") return;
  const Dims dims{"batch", "seq", "hidden"};
  OpCase c(map(text), {dims, dims}, {dims}, {{"batch", 2}, {"seq", 3}, {"hidden", hidden}});
  c.real(0);
  c.real(1);
  check_op(c, [&reference](const Tensors& in) { return Tensors{reference(in[0], in[1])}; });
}

TEST_CASE("a map of operands that lack dims or have them in another order", "[kernels]") {
  const std::int64_t seq = GENERATE(5, 900);  // the last: several chunks of a sequence
  OpCase c(map("a * b + silu(c) * d"),
           {{"batch", "seq", "heads", "hidden"}, {"hidden", "heads"}, {"batch"}, {"seq", "batch"}},
           {{"batch", "seq", "heads", "hidden"}},
           {{"batch", 3}, {"seq", seq}, {"heads", 4}, {"hidden", 10}});
  for (std::size_t i = 0; i < 4; ++i) c.real(i);
  check_op(c, [](const Tensors& in) {
    return Tensors{in[0] * in[1].t() +
                   (at::silu(in[2]).unsqueeze(1) * in[3].t()).unsqueeze(-1).unsqueeze(-1)};
  });
}

TEST_CASE("a map of scalars, and of one operand", "[kernels]") {
  OpCase c(map("a * 0.3"), {{}}, {{}}, {});
  c.real(0);
  check_op(c, [](const Tensors& in) { return Tensors{in[0] * 0.3}; });
  CHECK(is_linear_map("a * 0.3"));
  CHECK(is_linear_map("-a / 2"));
  CHECK_FALSE(is_linear_map("a + 1"));
  CHECK_FALSE(is_linear_map("a * a"));
  CHECK_FALSE(is_linear_map("a * b"));
  CHECK_FALSE(is_linear_map("sign(a)"));
  CHECK_FALSE(is_linear_map("a + sign(a)"));
}

TEST_CASE("a map of sparse rows", "[kernels]") {
  OpCase c(map("silu(a) * b * c"),
           {{"experts", "batch", "seq", "ffn"}, {"experts", "batch", "seq", "ffn"}, {"ffn"}},
           {{"experts", "batch", "seq", "ffn"}},
           {{"experts", 3}, {"batch", 2}, {"seq", 4}, {"ffn", 5}});
  c.sparse({"experts", "batch", "seq"}, {2, 0, 5});
  for (std::size_t i = 0; i < 3; ++i) c.real(i);
  check_op(c, [](const Tensors& in) { return Tensors{at::silu(in[0]) * in[1] * in[2]}; });
}

TEST_CASE("a map's traits are those of its expression") {
  const auto traits = [](const std::string& text) {
    const Dims dims{"batch", "hidden"};
    const OpCase c(map(text), {dims, dims}, {dims}, {{"batch", 2}, {"hidden", 3}});
    return c.op.type->traits(c.op);
  };
  CHECK(traits("a + 2 * b").backward_reads_input == std::vector<bool>{false, false});
  CHECK(traits("a + 2 * b").gradient_passes == std::vector<bool>{true, false});
  CHECK(traits("a + b * b").backward_reads_input == std::vector<bool>{false, true});
  CHECK(traits("a * b").backward_reads_input == std::vector<bool>{true, true});
}

TEST_CASE("a map's derivative where its parts have none") {
  OpCase c(map("softplus(a)"), {{"batch"}}, {{"batch"}}, {{"batch", 3}});
  c.real(0);
  c.inputs[0] = at::tensor({0.0, 40.0, -40.0}, at::kDouble);
  const Gradients made = run(c, {at::ones({3}, at::kDouble)}, Into::fresh);
  CHECK(error(made.outputs[0], at::tensor({std::log(2), 40.0, 0.0}, at::kDouble)) < 1e-12);
  CHECK(error(made.inputs[0], at::tensor({0.5, 1.0, 0.0}, at::kDouble)) < 1e-12);
}

TEST_CASE("maps hold what they declare") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const Dims dims{"batch", "seq", "hidden"};
  OpCase c(map("gelu(a) * b + c"), {dims, dims, {"hidden"}}, {dims},
           {{"batch", 2}, {"seq", 64}, {"hidden", 96}});
  for (std::size_t i = 0; i < 3; ++i) c.real(i);
  check_memory(c, type);
}

TEST_CASE("sums over dims", "[kernels]") {
  OpCase c(sum(), {{"batch", "seq", "heads", "hidden"}}, {{"batch", "heads"}},
           {{"batch", 3}, {"seq", 5}, {"heads", 4}, {"hidden", 6}});
  c.real(0);
  check_op(c, [](const Tensors& in) { return Tensors{in[0].sum({1, 3})}; });
  check_memory(c, at::kFloat);
}

TEST_CASE("concat", "[kernels]") {
  OpCase c(concat("both"), {{"batch", "seq", "first"}, {"batch", "seq", "second"}},
           {{"batch", "seq", "both"}},
           {{"batch", 3}, {"seq", 5}, {"first", 2}, {"second", 4}, {"both", 6}});
  c.real(0);
  c.real(1);
  check_op(c, [](const Tensors& in) { return Tensors{at::cat({in[0], in[1]}, -1)}; });
  check_memory(c, at::kFloat);
}

TEST_CASE("concat along another dim, of what lacks batch", "[kernels]") {
  OpCase c(concat("both"), {{"first", "width"}, {"batch", "second", "width"}},
           {{"batch", "both", "width"}},
           {{"batch", 3}, {"width", 5}, {"first", 2}, {"second", 4}, {"both", 6}});
  c.real(0);
  c.real(1);
  check_op(c, [](const Tensors& in) {
    return Tensors{at::cat({in[0].unsqueeze(0).expand({3, 2, 5}), in[1]}, 1)};
  });
  check_memory(c, at::kFloat);
}

TEST_CASE("split along another dim", "[kernels]") {
  OpCase c(split(), {{"batch", "both", "width"}},
           {{"batch", "first", "width"}, {"batch", "second", "width"}},
           {{"batch", 3}, {"width", 5}, {"first", 2}, {"second", 4}, {"both", 6}});
  c.real(0);
  check_op(c, [](const Tensors& in) {
    return Tensors{in[0].narrow(1, 0, 2).clone(), in[0].narrow(1, 2, 4).clone()};
  });
  check_memory(c, at::kFloat);
}

TEST_CASE("as", "[kernels]") {
  OpCase c(permuted({0, 3, 2, 1}), {{"batch", "seq", "streams", "hidden"}},
           {{"batch", "hidden", "rows", "seq"}},
           {{"batch", 3}, {"seq", 5}, {"streams", 4}, {"rows", 4}, {"hidden", 2}});
  c.real(0);
  check_op(c, [](const Tensors& in) { return Tensors{in[0].permute({0, 3, 2, 1})}; });
  check_memory(c, at::kFloat);
}

TEST_CASE("unfused attention with a soft cap, and of all keys", "[kernels]") {
  const AttentionLimits limits =
      GENERATE(AttentionLimits{0, 2.0, true}, AttentionLimits{3, 1.5, true},
               AttentionLimits{0, 0, false}, AttentionLimits{0, 2.0, false});
  const Dims q{"batch", "seq", "heads", "head_dim"}, k{"batch", "keys", "kv_heads", "head_dim"};
  OpCase c(unfused_attention(limits), {q, k, k}, {q},
           {{"batch", 2}, {"seq", 7}, {"keys", 7}, {"heads", 4}, {"kv_heads", 2}, {"head_dim", 6}});
  for (std::size_t i = 0; i < 3; ++i) c.real(i);
  check_op(c, [&limits](const Tensors& in) {
    const at::Tensor keys = in[1].repeat_interleave(2, 2), values = in[2].repeat_interleave(2, 2);
    at::Tensor scores = at::einsum("bqhd,bkhd->bhqk", {in[0], keys}) / std::sqrt(6.0);
    if (limits.softcap > 0) scores = at::tanh(scores / limits.softcap) * limits.softcap;
    if (limits.causal) {
      at::Tensor hidden = at::ones({7, 7}, at::kBool).triu(1);
      if (limits.window > 0)
        hidden = hidden.logical_or(at::ones({7, 7}, at::kBool).tril(-limits.window));
      scores = scores.masked_fill(hidden, -INFINITY);
    }
    return Tensors{at::einsum("bhqk,bkhd->bqhd", {at::softmax(scores, -1), values})};
  });
}

TEST_CASE("expressions are read, simplified and written") {
  CHECK(read_and_written("a*b+c") == "((a * b) + c)");
  CHECK(read_and_written("a - b - c") == "((a - b) - c)");
  CHECK(read_and_written("-a^2") == "(-(a * a))");
  CHECK(read_and_written("0 * a + 1 * b") == "((0 * a) + b)");
  CHECK(read_and_written("2 * 3 + 1 / 4 * a") == "(6 + (0.25 * a))");
  CHECK(read_and_written("max(a, 1e-3)") == "max(a, 0.001)");
  for (const auto& [text, reference] : functions()) {
    INFO(text);
    CHECK(read_and_written(read_and_written(text)) == read_and_written(text));
  }
  // What is alike is computed once: x * sigmoid(x), of which the derivative has the sigmoid too.
  Expressions silu;
  const int root = silu.parse("a * sigmoid(a)");
  CHECK(silu.operations({root}) == 2);
  CHECK(silu.operations({root, silu.derivative(root, 0)}) == 6);
}

TEST_CASE("what is no expression is refused") {
  const auto [text, why] = GENERATE(
      table<std::string, std::string>({{"a +", "it ends early"},
                                       {"(a", "a ')' is missing"},
                                       {"a b", "\"b\" is left over"},
                                       {"x2 + a", "\"x2\" is no operand: they are a, b, …"},
                                       {"A", "\"A\" is no operand: they are a, b, …"},
                                       {"sinh(a)", "there is no function \"sinh\""},
                                       {"silu(a, b)", "silu takes 1 argument"},
                                       {"max(a)", "max takes 2 arguments"},
                                       {"a ^ b", "an exponent is a number"},
                                       {"a % 2", "\"% 2\" is left over"},
                                       {"", "it ends early"}}));
  Expressions read;
  try {
    read.parse(text);
    FAIL(text);
  } catch (const Error& error) {
    CHECK(error.problems().front().code == "option.value");
    CHECK(error.problems().front().message == "\"" + text + "\" cannot be read: " + why);
  }
}
