// Shampoo keeps two factors of each matrix: however matrices are cut and stored, the parameters are
// one rank's, and the first step is the paper's.
#include <catch2/catch.hpp>

#include "meshwright/optimizer.h"
#include "report/listing.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

Setup shampoo_setup(const std::string& model) {
  Setup setup;
  // Odd sizes: parts end inside matrices, and the ffn does not divide evenly.
  setup.options = {{"layers", 2}, {"hidden", 24}, {"heads", 4}, {"ffn", 27}, {"vocab", 31}};
  if (model == "moe") {
    setup.make_moe();
    setup.options["expert_ffn"] = 20;
  }
  setup.sequence = 6;
  setup.batch = 8;
  setup.microbatch = 2;
  setup.optimizer = "shampoo";
  setup.optimizer_options = {{"lr", 0.02}, {"clip", 0.5}, {"weight_decay", 0.1}};
  return setup;
}

}  // namespace

TEST_CASE("Shampoo equals one rank: dp, tp, ZeRO, pipelines", "[shampoo]") {
  const int mix = GENERATE(range(0, 11));
  const std::vector<Mix> mixes = {
      {"dp", {dp(2)}},
      {"tp", {tp(2)}},
      {"tp 4", {tp(4)}},
      {"dp x tp", {dp(2, 1 << 12), tp(2)}},
      {"zero 1", {zero(2, 1)}},
      {"zero 2 x tp", {zero(2, 2), tp(2)}},
      {"zero 3 x tp", {zero(2, 3), tp(2)}},
      {"zero 3, four ways, two replicas", {zero(4, 3, 2)}},
      {"zero 3, offloaded", {zero(4, 3, 1, 1, false, 1 << 12, "parameters")}},
      {"pp", {pp(2, "1f1b", {1, 1})}},
      {"pp x zero x tp", {pp(2, "zb-h1", {1, 1}), zero(2, 2), tp(2)}},
  };
  Setup setup = shampoo_setup("llama");
  setup.plan = mixes[mix].plan;
  DYNAMIC_SECTION(mixes[mix].name) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("Shampoo's factors are of each expert, where it lies", "[shampoo]") {
  const int stage = GENERATE(0, 1, 3);
  Setup setup = shampoo_setup("moe");
  setup.plan = {dp(2), ep(2)};
  if (stage > 0) setup.plan.insert(setup.plan.begin(), zero(2, stage));
  DYNAMIC_SECTION("zero " << stage) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("Shampoo's steps are those of algorithm 1", "[shampoo]") {
  const auto optimizer = experiment(shampoo_setup("llama")).optimizer;
  const UpdateRule rule = optimizer->rule(/*matrices=*/true);
  REQUIRE(rule.of_matrix.size() == 2);
  const auto fp64 = at::TensorOptions().dtype(at::kDouble);
  const double eps = 1e-4;
  at::manual_seed(3);
  const std::vector<at::Tensor> kept = {at::zeros({2, 7, 7}, fp64), at::zeros({2, 5, 5}, fp64)};
  at::Tensor left = at::eye(7, fp64) * eps, right = at::eye(5, fp64) * eps;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor gradient = at::randn({2, 7, 5}, fp64), second = gradient[1].clone();
    left = left + second.mm(second.t());
    right = right + second.t().mm(second);
    const auto root = [](const at::Tensor& factor) {  // by singular values, not by eigenvectors
      const auto [u, s, v] = at::linalg_svd(factor);
      return at::mm(u * s.pow(-0.25), v);
    };
    const at::Tensor made = rule.whole->run(gradient, kept)[1];
    CHECK((made - root(left).mm(second).mm(root(right))).abs().max().item<double>() < 1e-10);
  }
}

TEST_CASE("Shampoo's factors lie on the ranks that work on the matrix", "[shampoo]") {
  const auto kept = [](std::vector<StrategyChoice> plan) {
    Setup setup = shampoo_setup("llama");
    setup.plan = std::move(plan);
    const auto made = experiment(setup);
    const Program& program = made.plan->programs.front();
    std::int64_t bytes = 0;
    for (int rank = 0; rank < program.mesh.size(); ++rank) {
      const RankView view(program, program.mesh.coordinates(rank));
      for (const Bucket& bucket : program.buckets) {
        for (const int slot : bucket.flat.of_matrix) bytes += view.bytes(slot);
      }
    }
    return bytes;
  };
  const std::int64_t once = kept({}), together = kept({zero(4, 1, 1, 1, false, 1 << 20)});
  // A matrix that ends in another shard than it begins in is kept by both.
  CHECK(once > 0);
  CHECK(together >= once);
  CHECK(together < 2 * once);
}
