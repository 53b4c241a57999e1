// Fused kernels: ops that run them give what they give without, and a kernel of each function of
// expressions what ATen computes, for all types, layouts and sizes.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <thread>

#include "comm/streams.h"
#include "fused_on_cpu.h"
#include "meshwright/ops.h"
#include "op_case.h"
#include "plugins/models/ops/fused.h"

using namespace mw;
using namespace mw::test;
using namespace mw::kernel;

namespace {

const FusedOnCpu& on_cpu() {
  static const FusedOnCpu platform;
  return platform;
}

// Whether texts are only written to files.
bool only_written() {
  return std::getenv("MESHWRIGHT_FUSED_TEXTS") != nullptr;
}

at::Tensor random(at::IntArrayRef shape, at::ScalarType type) {
  return at::randn(shape, at::kDouble).to(type);
}

// Twice the rounding of results, and of what is computed in between.
double bound(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : type == at::kHalf ? 2e-3 : 2e-2;
}

// Whether the kernel ran, which it must unless texts are only written.
bool ran(const Fused& fused, const std::vector<int>& roots, const std::vector<Target>& to,
         const std::vector<at::Tensor>& operands) {
  const bool done = fused.run(roots, to, operands);
  CHECK(done != only_written());
  return done;
}

// Runs the roots, and compares them with what the expressions give in fp64.
void check(const Fused& fused, const std::vector<int>& roots, at::IntArrayRef shape,
           const std::vector<at::Tensor>& operands, at::ScalarType type) {
  const PlatformScope scope(on_cpu());
  std::vector<at::Tensor> wide;
  for (const at::Tensor& one : operands) wide.push_back(one.to(at::kDouble));
  const std::vector<at::Tensor> expected = fused.f().compute(roots, wide);
  for (const bool add : {false, true}) {
    std::vector<Target> to;
    std::vector<at::Tensor> before;
    for (std::size_t i = 0; i < roots.size(); ++i) {
      to.push_back({random(shape, type), add});
      before.push_back(to.back().tensor.to(at::kDouble, false, /*copy=*/true));
    }
    if (!ran(fused, roots, to, operands)) continue;
    for (std::size_t i = 0; i < roots.size(); ++i) {
      INFO(fused.f().text(roots[i]));
      CHECK(error(to[i].tensor.to(at::kDouble), add ? before[i] + expected[i] : expected[i]) <
            bound(type));
    }
  }
}

// Checks that the op runs fused kernels, and that their results are those of the reference in
// fp64, and in other types those of the op without fused kernels.
void check_fused(const OpCase& c, const Reference& reference) {
  const int before = fused_runs();
  {
    const PlatformScope scope(on_cpu());
    check_op(c, reference);
    if (c.op.type->traits(c.op).backward_may_overwrite_saved)
      CHECK(faults_over_saved(c) == std::vector<std::string>());
  }
  CHECK((fused_runs() > before) != only_written());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const OpCase typed = in_type(c, type);
    Tensors seeds;
    for (const at::Tensor& output : forward(typed).outputs) seeds.push_back(at::randn_like(output));
    Tensors held;
    for (const at::Tensor& input : typed.inputs)
      held.push_back(input.is_floating_point() ? at::randn_like(input) : at::Tensor());
    for (const Into into : {Into::fresh, Into::added}) {
      const auto made = run(typed, seeds, into, held);
      const PlatformScope scope(on_cpu());
      const auto fused = run(typed, seeds, into, held);
      for (std::size_t i = 0; i < made.outputs.size(); ++i)
        CHECK(error(fused.outputs[i], made.outputs[i]) < 2 * bound(type));
      for (std::size_t i = 0; i < made.inputs.size(); ++i) {
        INFO("the gradient of input " << i << " in " << type);
        if (made.inputs[i].defined())
          CHECK(error(fused.inputs[i], made.inputs[i]) < 2 * bound(type));
      }
    }
  }
}

}  // namespace

TEST_CASE("a kernel of each function, and of its derivative, is ATen's", "[fused]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf);
  Expressions f;
  std::vector<int> roots;
  for (const std::string& function : Expressions::functions()) {
    const bool two = function == "max" || function == "min" || function == "softcap";
    const bool positive = function == "log" || function == "sqrt" || function == "rsqrt";
    roots.push_back(
        f.parse(function + (positive ? "(a * a + 0.5" : "(a") + (two ? ", 1.5)" : ")")));
  }
  roots.push_back(f.parse("max(a, b) / (b * b + 1) - (a * a + 1) ^ 1.3"));
  const std::size_t count = roots.size();
  for (std::size_t i = 0; i < count; ++i) roots.push_back(f.gradient(roots[i], 0, 1));
  roots.push_back(f.gradient(roots[count - 1], 1, 1));
  const Fused fused(std::move(f), 2);
  for (std::size_t first = 0; first < roots.size(); first += 12) {
    const std::vector<int> some(
        roots.begin() + static_cast<std::ptrdiff_t>(first),
        roots.begin() + static_cast<std::ptrdiff_t>(std::min(first + 12, roots.size())));
    check(fused, some, {1000}, {random({1000}, type) * 2, random({1000}, type)}, type);
  }
}

TEST_CASE("large numbers, infinities and NaN are as in ATen", "[fused]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble);
  const double huge = std::numeric_limits<double>::infinity();
  const at::Tensor x =
      at::tensor({-huge, -1e9, -100.0, -0.0, 0.0, 100.0, 1e9, huge, std::nan("")}, type);
  Expressions f;
  std::vector<int> roots;
  for (const char* text : {"relu(a)", "max(a, 2)", "min(a, 2)", "sigmoid(a)", "softplus(a)",
                           "sign(a)", "step(a)", "abs(a)", "tanh(a)", "exp(a)"})
    roots.push_back(f.parse(text));
  const Fused fused(std::move(f), 1);
  std::vector<Target> to;
  for (std::size_t i = 0; i < roots.size(); ++i) to.push_back({at::empty_like(x)});
  const PlatformScope scope(on_cpu());
  if (!ran(fused, roots, to, {x})) return;
  const auto expected = fused.f().compute(roots, {x});
  for (std::size_t i = 0; i < roots.size(); ++i) {
    INFO(fused.f().text(roots[i]) << '\n' << to[i].tensor << '\n' << expected[i]);
    CHECK(at::allclose(to[i].tensor, expected[i], 1e-6, 1e-40, /*equal_nan=*/true));
  }
}

TEST_CASE("a kernel reads and writes tensors as they lie", "[fused]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  Expressions f;
  const int root = f.parse("a * b + silu(c) * d");
  const Fused fused(std::move(f), 4);
  const std::int64_t last = GENERATE(1, 7, 8, 64, 1009);
  const at::Tensor whole = random({3, 5, last}, type);
  check(fused, {root}, {3, 5, last},
        {whole, random({5, 3, last}, type).transpose(0, 1), random({last}, type),
         random({3, 1, 1}, at::kFloat)},
        type);
  // A part of rows that does not begin at an aligned address, and elements that are not
  // adjacent.
  check(fused, {root}, {3, 5, last},
        {random({3, 5, last + 3}, type).narrow(2, 3, last),
         random({last, 5, 3}, type).permute({2, 1, 0}), random({3, 5, 1}, type), random({}, type)},
        type);
}

TEST_CASE("a target may be a view, or lie on an operand", "[fused]") {
  Expressions f;
  const std::vector<int> roots{f.parse("a * c - b"), f.parse("b * c + a")};
  const Fused fused(std::move(f), 3);
  const at::Tensor x = random({6, 10, 32}, at::kFloat), c = random({10, 16}, at::kFloat);
  const at::Tensor a = x.narrow(2, 0, 16), b = x.narrow(2, 16, 16);
  const at::Tensor expected = at::cat({a * c - b, b * c + a}, 2);
  const PlatformScope scope(on_cpu());
  if (!ran(fused, roots, {{a}, {b}}, {a, b, c})) return;
  CHECK(error(x, expected) < 1e-5);
}

TEST_CASE("indices of 64 bits", "[fused]") {
  Expressions f;
  const int root = f.parse("a + 1");
  const Fused fused(std::move(f), 1);
  const at::Tensor one = random({8}, at::kFloat);
  // Strides beyond what 32 bits hold; memory that is not touched takes no pages.
  const at::Tensor far = at::empty({2, (std::int64_t{1} << 30) + 1}, at::kFloat);
  far.narrow(1, 0, 8).copy_(one);
  const PlatformScope scope(on_cpu());
  const at::Tensor to = at::empty({2, 8}, at::kFloat);
  if (!ran(fused, {root}, {{to}}, {far.narrow(1, 0, 8)})) return;
  CHECK(error(to, far.narrow(1, 0, 8) + 1) < 1e-6);
}

TEST_CASE("what a kernel cannot treat is left to ATen", "[fused]") {
  Expressions f;
  const int root = f.parse("a + b");
  const Fused fused(std::move(f), 2);
  const at::Tensor x = random({8}, at::kFloat), to = at::empty_like(x);
  CHECK_FALSE(fused.run({root}, {{to}}, {x, x}));  // no platform
  const PlatformScope scope(on_cpu());
  CHECK_FALSE(fused.run({root}, {{to}}, {x, at::ones({8}, at::kLong)}));
  const at::Tensor none = at::empty({0}, at::kFloat);
  CHECK_FALSE(fused.run({root}, {{none}}, {none, none}));
}

TEST_CASE("threads that need a kernel at once compile it once", "[fused]") {
  Expressions f;
  const int root = f.parse("a * 1.2345");
  const Fused fused(std::move(f), 1);
  const int before = fused_compiled();
  const at::Tensor x = random({1000}, at::kFloat);
  std::vector<at::Tensor> made;
  for (int i = 0; i < 4; ++i) made.push_back(at::empty_like(x));
  std::vector<std::thread> threads;
  for (const at::Tensor& to : made) {
    threads.emplace_back([&] {
      const PlatformScope scope(on_cpu());
      for (int i = 0; i < 10; ++i) fused.run({root}, {{to}}, {x});
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(fused_compiled() == before + 1);
  if (only_written()) return;
  for (const at::Tensor& one : made) CHECK(error(one, x * 1.2345) < 1e-6);
}

TEST_CASE("an op whose kernel cannot be compiled runs without", "[fused]") {
  struct Refusing final : Platform {
    at::DeviceType type() const override { return at::kCPU; }
    std::unique_ptr<const DeviceKernel> compile(at::Device, const std::string&,
                                                const char*) const override {
      throw std::runtime_error("no compiler");
    }
  };
  const Refusing platform;
  const PlatformScope scope(platform);
  OpCase c(map("a * 2.3456"), {{"seq", "hidden"}}, {{"seq", "hidden"}},
           {{"seq", 3}, {"hidden", 5}});
  c.real(0);
  check_op(c, [](const Tensors& in) { return Tensors{in[0] * 2.3456}; });
}

TEST_CASE("fused rows have reductions that build on each other", "[fused]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const std::int64_t columns = GENERATE(1, 2, 31, 128, 1031, 4096);
  Expressions f;
  const int x = f.parse("a * b"), away = f.parse("(a * b - c) * (a * b - c)"),
            y = f.parse("(a * b - c) * rsqrt(d + 0.1)");
  const std::vector<int> roots{y, f.parse("c + d"), f.parse("e - 1")};
  const Fused fused(std::move(f), 2,
                    {{RowReduction::Kind::mean, x},
                     {RowReduction::Kind::mean, away},
                     {RowReduction::Kind::max, x}});
  const at::Tensor a = random({3, 2, columns}, type), b = random({columns}, type);
  const at::Tensor product = a.to(at::kDouble) * b.to(at::kDouble);
  const at::Tensor mean = product.mean(-1, true), var = product.var(-1, false, true);
  std::vector<Target> to{{at::empty_like(a)}};
  for (int i = 0; i < 2; ++i) to.push_back({at::empty({3, 2, 1}, a.options().dtype(wide(a)))});
  const PlatformScope scope(on_cpu());
  if (!ran(fused, roots, to, {a, b})) return;
  const double most = bound(type);
  CHECK(error(to[0].tensor.to(at::kDouble), (product - mean) * at::rsqrt(var + 0.1)) < most);
  CHECK(error(to[1].tensor.to(at::kDouble), mean + var) < most);
  CHECK(error(to[2].tensor.to(at::kDouble), product.amax(-1, true) - 1) < most);
}

TEST_CASE("a root is summed over rows in the same pass", "[fused]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const std::int64_t columns = GENERATE(1, 7, 64, 1032);
  const std::int64_t rows = 1003;  // not all blocks sum over equally many
  Expressions f;
  const int square = f.parse("a * a"), scaled = f.parse("a * rsqrt(c + 0.1)"),
            weighed = f.parse("a * b * c");
  const Fused fused(std::move(f), 2, {{RowReduction::Kind::mean, square}});
  const at::Tensor a = random({rows, columns}, type), b = random({rows, columns}, type);
  const at::Tensor wide_a = a.to(at::kDouble);
  const at::Tensor mean = wide_a.square().mean(-1, true);
  const at::Tensor to = at::empty_like(a);
  Fused::ColumnSums sums{weighed, {}};
  const PlatformScope scope(on_cpu());
  CHECK(fused.run({scaled}, {{to}}, {a, b}, &sums) != only_written());
  if (only_written()) return;
  CHECK(error(to.to(at::kDouble), wide_a * at::rsqrt(mean + 0.1)) < bound(type));
  CHECK(sums.sums.size(0) < rows);
  CHECK(sums.sums.scalar_type() == wide(a));
  CHECK(error(sums.sums.sum(0).to(at::kDouble), (wide_a * b.to(at::kDouble) * mean).sum(0)) <
        (type == at::kDouble ? 1e-11 : 1e-4));
  // Without a reduction of rows there is no such kernel.
  Fused::ColumnSums none{weighed, {}};
  CHECK_FALSE(fused.run({square}, {{to}}, {a, b}, &none));
}

TEST_CASE("swiglu and gelu are fused", "[fused]") {
  const std::int64_t seq = GENERATE(1, 37), ffn = GENERATE(5, 64);
  const std::map<std::string, std::int64_t> sizes{{"batch", 2}, {"seq", seq}, {"ffn", ffn}};
  const Dims dims{"batch", "seq", "ffn"};
  OpCase gated(swiglu(), {dims, dims}, {dims}, sizes);
  gated.real(0);
  gated.real(1);
  check_fused(gated, [](const Tensors& in) { return Tensors{at::silu(in[0]) * in[1]}; });
  OpCase weighed(swiglu(), {dims, dims, {"batch", "seq"}}, {dims}, sizes);
  for (std::size_t i = 0; i < 3; ++i) weighed.real(i);
  check_fused(weighed, [](const Tensors& in) {
    return Tensors{at::silu(in[0]) * in[1] * in[2].unsqueeze(-1)};
  });
  OpCase bell(gelu(), {dims}, {dims}, sizes);
  bell.real(0);
  check_fused(bell, [](const Tensors& in) { return Tensors{at::gelu(in[0], "tanh")}; });
}

TEST_CASE("maps are fused", "[fused]") {
  const std::int64_t hidden = GENERATE(1, 10, 128);
  OpCase c(map("a * b + silu(c) * d"),
           {{"batch", "seq", "heads", "hidden"}, {"hidden", "heads"}, {"batch"}, {"seq", "batch"}},
           {{"batch", "seq", "heads", "hidden"}},
           {{"batch", 3}, {"seq", 5}, {"heads", 4}, {"hidden", hidden}});
  for (std::size_t i = 0; i < 4; ++i) c.real(i);
  check_fused(c, [](const Tensors& in) {
    return Tensors{in[0] * in[1].t() +
                   (at::silu(in[2]).unsqueeze(1) * in[3].t()).unsqueeze(-1).unsqueeze(-1)};
  });
  OpCase turned(map("exp(a) - b * b"), {{"seq", "hidden"}, {"hidden", "seq"}}, {{"seq", "hidden"}},
                {{"seq", 5}, {"hidden", hidden}});
  turned.real(0);
  turned.real(1);
  check_fused(turned,
              [](const Tensors& in) { return Tensors{in[0].exp() - in[1].t() * in[1].t()}; });
}

TEST_CASE("rope is fused", "[fused]") {
  const std::int64_t width = GENERATE(2, 6, 32);
  const RopePairs pairs = GENERATE(RopePairs::halves, RopePairs::neighbours);
  const Dims heads{"batch", "seq", "heads", "head_dim"}, table{"seq", "turned"};
  const std::map<std::string, std::int64_t> sizes{
      {"batch", 3}, {"seq", 7}, {"heads", 2}, {"head_dim", width + 8}, {"turned", width}};
  OpCase tables(rope_table({10000, pairs}), {{"seq"}}, {table, table}, sizes);
  tables.inputs[0] = at::arange(7, at::kLong);
  const int before = fused_runs();
  const auto made = forward(tables).outputs;
  {
    const PlatformScope scope(on_cpu());
    const auto fused = forward(tables).outputs;
    CHECK((fused_runs() > before) != only_written());
    for (std::size_t i = 0; i < 2; ++i) CHECK(error(fused[i], made[i]) < 1e-12);
  }
  OpCase c(rope(pairs), {heads, table, table}, {heads}, sizes);
  c.real(0);
  for (std::size_t i = 1; i < 3; ++i) c.inputs[i] = forward(tables).outputs[i - 1];
  check_fused(c, [=](const Tensors& in) {
    const at::Tensor still = in[0].narrow(-1, 0, 8), x = in[0].narrow(-1, 8, width);
    at::Tensor other;
    if (pairs == RopePairs::halves) other = x.roll(width / 2, -1);
    if (pairs == RopePairs::neighbours) other = x.unflatten(-1, {-1, 2}).flip(-1).flatten(-2);
    return Tensors{at::cat({still, x * in[1].unsqueeze(1) + other * in[2].unsqueeze(1)}, -1)};
  });
}

TEST_CASE("rms_norm is fused", "[fused]") {
  const std::int64_t hidden = GENERATE(1, 7, 64, 1031);
  OpCase c(rms_norm(1e-5), {{"batch", "seq", "hidden"}, {"hidden"}}, {{"batch", "seq", "hidden"}},
           {{"batch", 2}, {"seq", 3}, {"hidden", hidden}});
  c.real(0);
  c.real(1);
  check_fused(c, [](const Tensors& in) {
    return Tensors{in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + 1e-5) * in[1]};
  });
}

TEST_CASE("a softmax over the last dim is fused", "[fused]") {
  const std::int64_t keys = GENERATE(1, 13, 64, 1031);
  OpCase c(softmax("keys"), {{"batch", "seq", "keys"}}, {{"batch", "seq", "keys"}},
           {{"batch", 2}, {"seq", 3}, {"keys", keys}});
  c.real(0);
  check_fused(c, [](const Tensors& in) { return Tensors{at::softmax(in[0], -1)}; });
}

TEST_CASE("the sums of a cross-entropy and its gradient are fused, of any part of a vocab",
          "[fused]") {
  const auto [offset, size] =
      GENERATE(table<std::int64_t, std::int64_t>({{0, 264}, {0, 128}, {128, 128}, {256, 8}}));
  const Dims rows{"batch", "seq"}, wide{"batch", "seq", "vocab"};
  OpCase c(ce_stats(), {wide, rows, rows}, {{"stat", "batch", "seq"}},
           {{"batch", 2}, {"seq", 5}, {"vocab", 264}, {"stat", 2}});
  c.cut("vocab", offset, size, 264);
  c.real(0);
  c.inputs[1] = std::get<0>(c.inputs[0].max(-1));
  c.no_grad(1);
  c.index(2, 264);
  const std::int64_t first = offset, held = size;
  check_fused(c, [=](const Tensors& in) {
    const at::Tensor shifted = in[0] - in[1].unsqueeze(-1);
    const at::Tensor full = at::constant_pad_nd(shifted, {first, 264 - first - held});
    return Tensors{
        at::stack({shifted.exp().sum(-1), full.gather(2, in[2].unsqueeze(-1)).squeeze(-1)})};
  });
}

// Near the end of a training a label's probability is near 1, and its gradient p - 1 small.
TEST_CASE("the gradient of a sure label is as exact as its type", "[fused]") {
  const Dims rows{"batch", "seq"}, wide{"batch", "seq", "vocab"};
  OpCase c(ce_stats(), {wide, rows, rows}, {{"stat", "batch", "seq"}},
           {{"batch", 1}, {"seq", 1}, {"vocab", 64}, {"stat", 2}});
  c.real(0);
  c.inputs[0].zero_();
  c.inputs[0][0][0][7] = 12;
  c.inputs[1] = at::full({1, 1}, 12, at::kDouble);
  c.no_grad(1);
  c.inputs[2] = at::full({1, 1}, 7, at::kLong);
  const OpCase half = in_type(c, at::kBFloat16);
  const PlatformScope scope(on_cpu());
  const at::Tensor sum = forward(half).outputs[0][0];
  const Tensors seeds{at::stack({1 / sum, at::full_like(sum, -1)})};
  const at::Tensor made = run(half, seeds, Into::fresh).inputs[0];
  if (only_written()) return;
  const double exact = 1 / (1 + 63 * std::exp(-12.0)) - 1;
  CHECK(made[0][0][7].item<double>() == Approx(exact).epsilon(0.02));
}
