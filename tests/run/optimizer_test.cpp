// AdamW and SGD beside ATen's kernel and the papers' formulas, whole and cut anywhere.
#include "meshwright/optimizer.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "support/problems.h"
#include "support/registered.h"
using mw::Json;

namespace {

std::shared_ptr<const mw::Optimizer> make(const std::string& kind, const Json& given) {
  return mw::test::made<mw::Optimizer>("optimizer", kind, given);
}

at::Tensor random_tensor(std::int64_t count, at::ScalarType dtype) {
  return at::randn({count}, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

}  // namespace

TEST_CASE("adamw equals ATen's fused kernel bit for bit over several steps", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kDouble);
  const std::int64_t count = GENERATE(1, 7, 64, 1003);
  at::manual_seed(1);
  const auto optimizer = make("adamw", {{"lr", 3e-3}});
  at::Tensor param = random_tensor(count, dtype), want = param.clone();
  auto state = optimizer->make_state(param);
  const at::Tensor m = at::zeros_like(want), v = at::zeros_like(want);
  const at::Tensor step = at::zeros({}, at::kFloat);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor grad = random_tensor(count, dtype);
    step.add_(1);
    at::_fused_adamw_({want}, {grad}, {m}, {v}, {}, {step}, 3e-3 / (i + 1), 0.9, 0.95, 0.1, 1e-8,
                      false, false);
    optimizer->step(param, grad.clone(), state, 3e-3 / (i + 1), i);
    REQUIRE(at::equal(param, want));
  }
  CHECK(at::equal(state.tensors[0], m));
  CHECK(at::equal(state.tensors[1], v));
}

TEST_CASE("adamw follows the paper's formulae", "[kernels]") {
  at::manual_seed(2);
  const double lr = 1e-2, b1 = 0.8, b2 = 0.99, eps = 1e-6, decay = 0.3;
  const auto optimizer =
      make("adamw", {{"lr", lr}, {"betas", {b1, b2}}, {"eps", eps}, {"weight_decay", decay}});
  at::Tensor param = random_tensor(50, at::kDouble), want = param.clone();
  auto state = optimizer->make_state(param);
  at::Tensor m = at::zeros_like(param), v = at::zeros_like(param);
  for (int t = 1; t <= 4; ++t) {
    const at::Tensor grad = random_tensor(50, at::kDouble);
    m = b1 * m + (1 - b1) * grad;
    v = b2 * v + (1 - b2) * grad * grad;
    want = want - lr * decay * want -
           lr * (m / (1 - std::pow(b1, t))) / ((v / (1 - std::pow(b2, t))).sqrt() + eps);
    optimizer->step(param, grad.clone(), state, lr, t - 1);
    CHECK((param - want).abs().max().item<double>() < 1e-14);
  }
}

TEST_CASE("a flat tensor cut anywhere is updated as the whole is, to the last bits", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kDouble);
  at::manual_seed(3);
  const auto optimizer = make("adamw", {{"lr", 1e-2}});
  const at::Tensor whole = random_tensor(1000, dtype), parts = whole.clone();
  auto state = optimizer->make_state(whole);
  std::vector<at::Tensor> views;
  std::vector<mw::OptimizerState> states;
  for (std::int64_t at = 0, size = 13; at < 1000; at += size) {
    views.push_back(parts.narrow(0, at, std::min<std::int64_t>(size, 1000 - at)));
    states.push_back(optimizer->make_state(views.back()));
  }
  for (int i = 0; i < 4; ++i) {
    const at::Tensor grad = random_tensor(1000, dtype);
    optimizer->step(whole, grad.clone(), state, 1e-2, i);
    for (std::size_t p = 0, at = 0; p < views.size(); at += views[p].numel(), ++p)
      optimizer->step(views[p], grad.narrow(0, at, views[p].numel()).clone(), states[p], 1e-2, i);
  }
  const double eps = dtype == at::kFloat ? 1.2e-7 : 2.3e-16;
  CHECK(((whole - parts).abs() / whole.abs().clamp_min(1e-2)).max().item<double>() < 8 * eps);
}

TEST_CASE("a flat tensor cut at multiples of the vector width is updated bit for bit as the whole",
          "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kDouble);
  at::manual_seed(5);
  const auto optimizer = make("adamw", {{"lr", 1e-2}});
  const at::Tensor whole = random_tensor(1003, dtype), parts = whole.clone();
  const at::Tensor head = parts.narrow(0, 0, 16 * 21),
                   tail = parts.narrow(0, 16 * 21, 1003 - 16 * 21);
  auto state = optimizer->make_state(whole), head_state = optimizer->make_state(head),
       tail_state = optimizer->make_state(tail);
  for (int i = 0; i < 4; ++i) {
    const at::Tensor grad = random_tensor(1003, dtype);
    optimizer->step(whole, grad.clone(), state, 1e-2, i);
    optimizer->step(head, grad.narrow(0, 0, head.numel()).clone(), head_state, 1e-2, i);
    optimizer->step(tail, grad.narrow(0, head.numel(), tail.numel()).clone(), tail_state, 1e-2, i);
  }
  CHECK(at::equal(whole, parts));
}

TEST_CASE("sgd equals its formula, with and without momentum", "[kernels]") {
  at::manual_seed(4);
  const double momentum = GENERATE(0.0, 0.9), decay = GENERATE(0.0, 0.1);
  const auto optimizer =
      make("sgd", {{"lr", 0.1}, {"momentum", momentum}, {"weight_decay", decay}});
  at::Tensor param = random_tensor(33, at::kDouble), want = param.clone(), v = at::zeros_like(want);
  auto state = optimizer->make_state(param);
  CHECK(state.tensors.size() == (momentum == 0 ? 0 : 1));
  for (int i = 0; i < 3; ++i) {
    const at::Tensor grad = random_tensor(33, at::kDouble);
    v = momentum * v + grad + decay * want;
    want = want - 0.1 * v;
    optimizer->step(param, grad.clone(), state, 0.1, i);
  }
  CHECK((param - want).abs().max().item<double>() < 1e-14);
}

TEST_CASE("what an optimizer keeps for each element", "[kernels]") {
  CHECK(make("adamw", {{"lr", 1.0}})->rule(0).states.size() == 2);
  CHECK(make("sgd", {{"lr", 1.0}})->rule(0).states.empty());
  CHECK(make("sgd", {{"lr", 1.0}, {"momentum", 0.5}})->rule(0).states.size() == 1);
}

TEST_CASE("defaults, clipping and refusals", "[kernels]") {
  const auto optimizer = make("adamw", {{"lr", 1e-3}, {"clip", 1.0}});
  CHECK(optimizer->lr() == 1e-3);
  CHECK(optimizer->clip() == 1.0);
  CHECK(make("adamw", {{"lr", 1e-3}})->clip() == 0);

  CHECK(mw::clip_factor(0.5, 1.0) == 1.0);
  CHECK(mw::clip_factor(4.0, 1.0) == 1.0 / (4.0 + 1e-6));
  CHECK(mw::clip_factor(100.0, 0) == 1.0);
  CHECK(std::isnan(mw::clip_factor(std::numeric_limits<double>::quiet_NaN(), 1.0)));

  at::Tensor param = at::zeros({4}, at::kDouble), scaled = at::zeros({4}, at::kDouble);
  auto state = optimizer->make_state(param), scaled_state = optimizer->make_state(scaled);
  optimizer->step(param, at::full({4}, 0.25, at::kDouble), state, 0.1, 0);
  optimizer->step(scaled, at::ones({4}, at::kDouble), scaled_state, 0.1, 0, 0.25);
  CHECK(at::equal(state.tensors[1], scaled_state.tensors[1]));
  CHECK(at::equal(param, scaled));

  const auto empty = at::zeros({0}, at::kFloat);
  auto nothing = optimizer->make_state(empty);
  optimizer->step(empty, empty, nothing, 0.1, 0);

  const auto refused = [](const Json& given) {
    return mw::test::thrown([&] { make("adamw", given); });
  };
  CHECK(refused({{"lr", 1e-3}, {"betas", {0.9}}}) == "option.value optimizer.betas");
  CHECK(refused({{"lr", 1e-3}, {"betas", {0.9, 1.0}}}) == "option.value optimizer.betas");
  CHECK(refused({{"lr", 1e-3}, {"weight_decya", 0}}) == "option.unknown optimizer.weight_decya");
  CHECK(refused(Json::object()) == "option.missing optimizer.lr");
}
