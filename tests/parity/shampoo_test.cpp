// Shampoo keeps two factors of each matrix: however matrices are cut and stored, the parameters are
// one rank's, and the first step is the paper's.
#include <catch2/catch.hpp>

#include "draw/listing.h"
#include "meshwright/optimizer.h"
#include "support/setup.h"
#include "whole_matrices.h"

using namespace mw;
using namespace mw::test;

namespace {

Setup shampoo_setup(const std::string& model) {
  return whole_matrix_setup(model, "shampoo", {{"lr", 0.02}, {"clip", 0.5}, {"weight_decay", 0.1}});
}

}  // namespace

TEST_CASE("Shampoo equals one rank: dp, tp, ZeRO, pipelines", "[shampoo]") {
  const Mix mix = whole_matrix_mix(GENERATE(range(0, whole_matrix_mixes)));
  Setup setup = shampoo_setup("llama");
  setup.plan = mix.plan;
  DYNAMIC_SECTION(mix.name) {
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
  const UpdateRule rule = optimizer->rule(/*group=*/1);
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

// A library's products round by the address of their operands: copies of one factor that begin
// otherwise on each rank would differ, and a checkpoint has one of them.
TEST_CASE("Each matrix's factors begin where a tensor of its own would", "[shampoo]") {
  Setup setup = shampoo_setup("llama");
  setup.options.update({{"hidden", 8}, {"heads", 4}, {"kv_heads", 2}, {"ffn", 7}});
  setup.plan = {zero(2, 2), tp(2)};
  const auto made = experiment(setup);
  const Program& program = made.plan->programs.front();
  int looked = 0;
  for (int rank = 0; rank < program.mesh.size(); ++rank) {
    const RankView view(program, program.mesh.coordinates(rank));
    for (const Bucket& bucket : program.buckets) {
      for (const int slot : bucket.flat.of_matrix) {
        std::int64_t end = 0;
        for (const int p : bucket.parameters) {
          const Range part = view.of_matrix(slot, p);
          if (part.size == 0) continue;
          const int bytes = bytes_of(program.slots[static_cast<std::size_t>(slot)].dtype);
          CHECK(part.offset * bytes % 64 == 0);
          CHECK(part.offset >= end);
          end = part.offset + part.size;
          looked += part.size * bytes % 64 == 0 ? 0 : 1;
        }
        CHECK(end <= view.all_of_matrix(slot).size);
      }
    }
  }
  CHECK(looked > 0);
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
