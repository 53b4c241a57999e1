// The loops that replace chains of ATen's kernels, in fp32 and fp64, beside the chains in fp64.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "op_case.h"
#include "plugins/models/ops/vector/vector.h"

using namespace mw;
using namespace mw::test;

namespace {

constexpr double exact(double) {
  return 1e-13;
}
constexpr double exact(float) {
  return 1e-5;
}

template <class T>
at::Tensor random(at::IntArrayRef shape) {
  return at::randn(shape, c10::CppTypeToScalarType<T>::value);
}

at::Tensor wide_of(const at::Tensor& tensor) {
  return tensor.to(at::kDouble);
}

}  // namespace

TEMPLATE_TEST_CASE("exponentials of a loop", "[kernels]", float, double) {
  using Limits = std::numeric_limits<TestType>;
  // Numbers below the smallest normal one are noughts.
  const double least = std::log(static_cast<double>(Limits::min())) + 0.5;
  const double most = std::log(static_cast<double>(Limits::max())) - 0.5;
  const at::Tensor x = at::cat({at::linspace(least, most, 1001, at::kDouble),
                                at::linspace(-1e-3, 1e-3, 101, at::kDouble)})
                           .to(c10::CppTypeToScalarType<TestType>::value);
  const at::Tensor sum = at::empty_like(x), none = at::zeros_like(x);
  const auto& loops = vector::loops<TestType>();
  // Rows of one column, then one row of all columns: the end of a loop, and its whole vectors.
  loops.exp_sum(sum.data_ptr<TestType>(), x.data_ptr<TestType>(), none.data_ptr<TestType>(),
                x.numel(), 1);
  const at::Tensor row = at::empty_like(x), one = at::ones_like(x);
  loops.exp_scaled(row.data_ptr<TestType>(), x.data_ptr<TestType>(), none.data_ptr<TestType>(),
                   one.data_ptr<TestType>(), 1, x.numel(), vector::Write::over);
  const at::Tensor expected = wide_of(x).exp();
  for (const at::Tensor& made : {sum, row}) {
    const at::Tensor off = (wide_of(made) / expected - 1).abs();
    CHECK(off.max().item<double>() < 4 * static_cast<double>(Limits::epsilon()));
  }
  const TestType edges[] = {-Limits::infinity(), TestType(-1e4),     0,
                            TestType(1e4),       Limits::infinity(), Limits::quiet_NaN()};
  TestType made[6];
  const TestType zero[6] = {};
  loops.exp_sum(made, edges, zero, 6, 1);
  CHECK(made[0] == 0);
  CHECK(made[1] == 0);
  CHECK(made[2] == 1);
  CHECK(std::isinf(made[3]));
  CHECK(std::isinf(made[4]));
  CHECK(std::isnan(made[5]));
}

TEMPLATE_TEST_CASE("norms and SwiGLU of a loop", "[kernels]", float, double) {
  const std::int64_t columns = GENERATE(1, 7, 16, 37, 300), rows = 5;
  const auto& loops = vector::loops<TestType>();
  const at::Tensor x = random<TestType>({rows, columns}), w = random<TestType>({columns});
  const at::Tensor y = at::empty_like(x), rstd = at::empty({rows}, x.options());
  loops.rms_forward(y.data_ptr<TestType>(), rstd.data_ptr<TestType>(), x.data_ptr<TestType>(),
                    w.data_ptr<TestType>(), rows, columns, TestType(1e-5));
  const at::Tensor scale = at::rsqrt(wide_of(x).square().mean(1, true) + 1e-5);
  CHECK(error(wide_of(y), wide_of(x) * scale * wide_of(w)) < exact(TestType()));
  CHECK(error(wide_of(rstd), scale.squeeze(1)) < exact(TestType()));

  const at::Tensor up = random<TestType>({rows, columns}), by = random<TestType>({rows});
  loops.swiglu_forward(y.data_ptr<TestType>(), x.data_ptr<TestType>(), up.data_ptr<TestType>(),
                       by.data_ptr<TestType>(), rows, columns);
  const at::Tensor gated = at::silu(wide_of(x)) * wide_of(up);
  CHECK(error(wide_of(y), gated * wide_of(by).unsqueeze(1)) < exact(TestType()));
  loops.swiglu_forward(y.data_ptr<TestType>(), x.data_ptr<TestType>(), up.data_ptr<TestType>(),
                       nullptr, rows, columns);
  CHECK(error(wide_of(y), gated) < exact(TestType()));
}

TEMPLATE_TEST_CASE("SwiGLU's gradients are the same whichever are wanted", "[kernels]", float,
                   double) {
  const std::int64_t columns = GENERATE(1, 16, 37), rows = 5;
  const at::Tensor gate = random<TestType>({rows, columns}), up = random<TestType>({rows, columns}),
                   dy = random<TestType>({rows, columns}), by = random<TestType>({rows});
  const auto write = [](bool added) { return added ? vector::Write::added : vector::Write::over; };
  struct Made {
    at::Tensor gate, up, weights;
  };
  const auto made = [&](bool of_gate, bool of_up, bool added) {
    const auto out = [&](const at::Tensor& like) { return at::full_like(like, added ? 3 : 7); };
    const Made m{out(gate), out(up), out(by)};
    vector::loops<TestType>().swiglu_backward(
        {dy.data_ptr<TestType>(), gate.data_ptr<TestType>(), up.data_ptr<TestType>(),
         by.data_ptr<TestType>(), of_gate ? m.gate.template data_ptr<TestType>() : nullptr,
         of_up ? m.up.template data_ptr<TestType>() : nullptr,
         m.weights.template data_ptr<TestType>(), write(added), write(added), write(added)},
        rows, columns);
    return m;
  };
  const at::Tensor g = wide_of(gate), s = at::sigmoid(g), weight = wide_of(by).unsqueeze(1);
  const at::Tensor of_up = wide_of(dy) * weight * g * s;
  const at::Tensor of_gate = wide_of(dy) * wide_of(up) * weight * s * (1 + g * (1 - s));
  for (const bool added : {false, true}) {
    const Made both = made(true, true, added);
    CHECK(error(wide_of(both.gate), added ? of_gate + 3 : of_gate) < exact(TestType()));
    CHECK(error(wide_of(both.up), added ? of_up + 3 : of_up) < exact(TestType()));
    const Made first = made(true, false, added), second = made(false, true, added),
               none = made(false, false, added);
    CHECK(first.gate.equal(both.gate));
    CHECK(second.up.equal(both.up));
    CHECK(first.up.equal(at::full_like(up, added ? 3 : 7)));
    CHECK(second.gate.equal(at::full_like(gate, added ? 3 : 7)));
    for (const Made* each : {&first, &second, &none})
      CHECK(error(wide_of(each->weights), wide_of(both.weights)) < exact(TestType()));
  }
}

TEMPLATE_TEST_CASE("a loop turns heads that lie apart", "[kernels]", float, double) {
  const bool halves = GENERATE(true, false), add = GENERATE(true, false);
  const std::int64_t width = GENERATE(2, 6, 32), heads = 3;
  const at::Tensor x = random<TestType>({heads, width + 5}), y = random<TestType>({heads, width});
  const at::Tensor cosine = random<TestType>({width}), sine = random<TestType>({width});
  const at::Tensor before = wide_of(y).clone(), turned = wide_of(x.narrow(1, 0, width));
  vector::Heads<TestType> h{
      x.data_ptr<TestType>(), y.data_ptr<TestType>(), heads, width, width + 5, width, halves};
  h.sign = -1;
  h.write = add ? vector::Write::added : vector::Write::over;
  vector::loops<TestType>().rotate(h, cosine.data_ptr<TestType>(), sine.data_ptr<TestType>());
  const at::Tensor swapped =
      halves ? turned.roll(width / 2, 1) : turned.unflatten(1, {-1, 2}).flip({2}).flatten(1);
  const at::Tensor made = turned * wide_of(cosine) - swapped * wide_of(sine);
  CHECK(error(wide_of(y), add ? before + made : made) < exact(TestType()));
}
