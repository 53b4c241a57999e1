// Muon beside a dense implementation of its own, matrix by matrix,
// with the tests' own Newton-Schulz.
#include <catch2/catch.hpp>

#include <cmath>

#include "meshwright/engine/ranks.h"
#include "support/problems.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

std::shared_ptr<const Optimizer> muon(const Json& given) {
  return made<Optimizer>("optimizer", "muon", given);
}

std::string muon_refusal(const Json& given) {
  return thrown([&] { muon(given); });
}

// As torch.optim.Muon writes it: the wide one of X and its transpose, one matrix, in float64.
at::Tensor dense(const at::Tensor& update, int steps) {
  at::Tensor x = update.size(0) > update.size(1) ? update.t() : update;
  x = x / x.norm().clamp_min(1e-7);
  for (int i = 0; i < steps; ++i) {
    const at::Tensor gram = x.matmul(x.t());
    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram.matmul(gram)).matmul(x);
  }
  return update.size(0) > update.size(1) ? x.t() : x;
}

double apart(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

const auto fp64 = at::TensorOptions().dtype(at::kDouble);

}  // namespace

TEST_CASE("Tall, wide, square and stacked matrices are orthogonalised each by itself",
          "[kernels]") {
  const auto [rows, columns] = GENERATE(table<int, int>({{24, 7}, {7, 24}, {16, 16}, {1, 9}}));
  const int stacked = GENERATE(1, 3), steps = GENERATE(1, 2, 5);
  at::manual_seed(5);
  const at::Tensor stack = at::randn({stacked, rows, columns}, fp64);
  const auto optimizer = muon({{"lr", 0.02}, {"ns_steps", steps}});
  const MatrixOp& orthogonalise = *optimizer->rule(1).whole;
  const at::Tensor made = orthogonalise.run(stack.clone(), {});
  for (int k = 0; k < stacked; ++k) CHECK(apart(made[k], dense(stack[k], steps)) < 1e-13);
  if (steps == 5) {  // Jordan's coefficients leave singular values between 0.7 and 1.2
    const at::Tensor values = at::linalg_svdvals(made);
    CHECK(values.max().item<double>() < 1.3);
    CHECK(values.min().item<double>() > 0.3);
  }
  CHECK(orthogonalise.run(at::zeros({1, rows, columns}, fp64), {}).abs().max().item<double>() == 0);
}

TEST_CASE("The momentum, the look-ahead and the two rates are torch.optim.Muon's", "[kernels]") {
  const bool nesterov = GENERATE(false, true);
  const std::string adjust = GENERATE(as<std::string>{}, "original", "match_rms_adamw");
  const auto [rows, columns] = GENERATE(table<int, int>({{20, 5}, {5, 20}}));
  const double lr = 0.02, mu = 0.9, decay = 0.3;
  const auto optimizer = muon({{"lr", lr},
                               {"momentum", mu},
                               {"nesterov", nesterov},
                               {"weight_decay", decay},
                               {"adjust_lr", adjust}});
  const UpdateRule rule = optimizer->rule(/*group=*/1);
  at::manual_seed(6);
  at::Tensor param = at::randn({rows, columns}, fp64), want = param.clone();
  at::Tensor buffer = at::zeros_like(want);
  OptimizerState state = optimizer->make_state(param.view(-1), true);
  REQUIRE(state.tensors.size() == 1);
  CHECK(optimizer->rule(0).states.size() == 2);
  const double factor = adjust == "original" ? std::sqrt(std::max(1.0, 1.0 * rows / columns))
                                             : 0.2 * std::sqrt(std::max(rows, columns));
  for (int t = 0; t < 4; ++t) {
    const at::Tensor grad = at::randn({rows, columns}, fp64);
    const at::Tensor scaled = 0.5 * grad;
    buffer = mu * buffer + (1 - mu) * scaled;
    const at::Tensor update = nesterov ? (1 - mu) * scaled + mu * buffer : buffer;
    want = want * (1 - lr * decay) - lr * factor * dense(update, 5);
    const at::Tensor direction = grad.clone().view(-1);
    rule.direction->run({.gradient = direction, .state = state, .grad_scale = 0.5});
    rule.apply->run({.parameter = param,
                     .gradient = rule.whole->run(direction.view({1, rows, columns}), {})[0],
                     .lr = lr,
                     .rows = rows,
                     .columns = columns});
    CHECK(apart(param, want) < 1e-13);
  }
}

TEST_CASE("All but matrices: AdamW, at a rate in proportion to Muon's", "[kernels]") {
  const auto optimizer = muon({{"lr", 0.02},
                               {"weight_decay", 0.2},
                               {"adamw", {{"lr", 0.005}, {"betas", {0.8, 0.9}}, {"eps", 1e-6}}}});
  const auto adamw =
      made<Optimizer>("optimizer", "adamw",
                      {{"lr", 0.005}, {"betas", {0.8, 0.9}}, {"eps", 1e-6}, {"weight_decay", 0.2}});
  at::manual_seed(7);
  at::Tensor param = at::randn({31}, fp64), want = param.clone();
  OptimizerState state = optimizer->make_state(param), other = adamw->make_state(want);
  for (int t = 0; t < 3; ++t) {
    const at::Tensor grad = at::randn({31}, fp64);
    optimizer->step(param, grad.clone(), state, 0.01, t);
    adamw->step(want, grad.clone(), other, 0.0025, t);
    CHECK(apart(param, want) < 1e-14);
  }
}

TEST_CASE("What Muon does not take is refused with the key's path", "[kernels]") {
  CHECK(muon_refusal({{"lr", 0.02}}) == "none");
  CHECK(muon_refusal({{"lr", 0.0}}) == "option.range optimizer.lr");
  CHECK(muon_refusal({{"lr", 0.02}, {"adamw", {{"beta", 1}}}}) ==
        "option.unknown optimizer.adamw.beta");
  CHECK(muon_refusal({{"lr", 0.02}, {"adamw", {{"betas", {0.9}}}}}) ==
        "option.value optimizer.adamw.betas");
}

TEST_CASE("Which parameters are matrices, and their rows and columns", "[kernels]") {
  Setup setup;
  setup.optimizer = "muon";
  setup.optimizer_options = {{"lr", 0.02}};
  std::map<std::string, std::pair<int, int>> want;  // dims that number matrices, and that make rows
  SECTION("llama") {
    for (const char* name : {"attention.q", "attention.k", "attention.v"}) want[name] = {0, 2};
    for (const char* name : {"attention.o", "mlp.gate", "mlp.up", "mlp.down"}) want[name] = {0, 1};
  }
  SECTION("gpt, tied") {
    setup.make_gpt();
    for (const char* name : {"attention.q", "attention.k", "attention.v"}) want[name] = {0, 2};
    for (const char* name : {"attention.o", "mlp.up", "mlp.down"}) want[name] = {0, 1};
  }
  SECTION("experts, each a matrix, and the router") {
    setup.make_moe();
    for (const char* name : {"attention.q", "attention.k", "attention.v"}) want[name] = {0, 2};
    for (const char* name : {"attention.o", "router"}) want[name] = {0, 1};
    for (const char* name : {"experts.gate", "experts.up", "experts.down"}) want[name] = {1, 1};
  }
  const Experiment e = experiment(setup);
  const Program& program = e.plan->programs.front();
  std::set<std::string> found;
  for (const Bucket& bucket : program.buckets) {
    for (int p : bucket.parameters) {
      const ProgramParameter& parameter = program.parameters[p];
      const std::string& name = program.graph->value(parameter.value).name;
      CHECK(bucket.matrix == (parameter.rows > 0));
      if (!bucket.matrix) continue;
      const std::string inside = name.substr(9, name.size() - 9 - 7);  // layers.N. ... .weight
      found.insert(inside);
      INFO(name);
      REQUIRE(want.count(inside) == 1);
      CHECK(want[inside] == std::pair(parameter.stacked, parameter.rows));
    }
  }
  CHECK(found.size() == want.size());
}

TEST_CASE("A rank's step is the dense one of every matrix", "[kernels]") {
  Setup setup;
  setup.optimizer = "muon";
  setup.optimizer_options = {{"lr", 0.02}, {"weight_decay", 0.1}};
  const Experiment e = experiment(setup);
  with_ranks(e, *e.plan, nullptr, [&](RankRun& executor, Ledger&) {
    class Gradients : public Watcher {
     public:
      void computed(const Instruction&, int, int, const at::Tensor&) override {}
      void gradients(RankRun& run) override {
        for (const Bucket& bucket : run.program().buckets) {
          before.push_back(run.kept(bucket.flat.parameters).clone());
          made.push_back(run.kept(bucket.flat.gradients).clone());
        }
      }
      std::vector<at::Tensor> before, made;
    } watcher;
    executor.watch(&watcher);
    executor.step(0, 0.02);
    const Program& program = executor.program();
    int matrices = 0;
    for (std::size_t b = 0; b < program.buckets.size(); ++b) {
      if (!program.buckets[b].matrix) continue;
      for (int p : program.buckets[b].parameters) {
        const auto flat = [&](const at::Tensor& t) {
          const at::Tensor whole = executor.slice(p, t);
          return whole.flatten(0, program.parameters[p].rows - 1).flatten(1);
        };
        const at::Tensor w = flat(watcher.before[b]), g = flat(watcher.made[b]);
        const at::Tensor update = (1 - 0.95) * g + 0.95 * (1 - 0.95) * g;
        const double factor = std::sqrt(
            std::max(1.0, static_cast<double>(w.size(0)) / static_cast<double>(w.size(1))));
        const at::Tensor want = w * (1 - 0.02 * 0.1) - 0.02 * factor * dense(update, 5);
        if (apart(flat(executor.kept(program.buckets[b].flat.parameters)), want) > 1e-12)
          throw std::logic_error("another step");
        ++matrices;
      }
    }
    if (matrices != 14) throw std::logic_error("not all matrices");
  });
}
