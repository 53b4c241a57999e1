// Products in fp32 by whatever library serves on this CPU, beside the same ones in fp64.
#include "plugins/models/ops/gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

using namespace mw;

namespace {

struct ProductSizes {
  std::int64_t m, n, k;
};

// The largest error of out = a b and of out += a b. Its unit is what fp32 may round off each of the
// k numbers that are added; with 8 more, as the greatest of many sums is greater than most.
double worst_error(decltype(product_into)& product, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor right = a.to(at::kDouble).mm(b.to(at::kDouble));
  const at::Tensor before = at::randn({a.size(0), b.size(1)});
  double worst = 0;
  for (const bool add : {false, true}) {
    at::Tensor out = add ? before.clone() : at::full_like(before, NAN);
    product(out, a, b, add);
    const at::Tensor expected = add ? right + before.to(at::kDouble) : right;
    worst = std::max(worst, (out.to(at::kDouble) - expected).abs().max().item<double>());
  }
  return worst / (6e-8 * static_cast<double>(a.size(1) + 8));
}

// What a thread is set to is its own, so the next test is not told of it.
struct OnThreads {
  explicit OnThreads(int threads) : before(at::get_num_threads()) { at::set_num_threads(threads); }
  ~OnThreads() { at::set_num_threads(before); }
  const int before;
};

}  // namespace

// Around the sizes of whole blocks of rows (64), columns (128) and of what is contracted (512), and
// where libraries take turns.
TEST_CASE("Products of any size are right, whichever operand is transposed", "[kernels]") {
  const auto [m, n, k] = GENERATE(values<ProductSizes>({{1, 1, 1},
                                                        {1, 7, 9},
                                                        {5, 1, 3},
                                                        {24, 48, 48},
                                                        {64, 128, 512},
                                                        {63, 127, 511},
                                                        {65, 129, 513},
                                                        {300, 65, 1100},
                                                        {101, 256, 96},
                                                        {8, 688, 256},
                                                        {128, 1, 700},
                                                        {256, 300, 300}}));
  const OnThreads threads(GENERATE(1, 2));
  at::manual_seed(7);
  for (auto* product : {&product_into, &passing_product_into}) {
    INFO(m << " x " << n << " x " << k << (product == &product_into ? "" : ", passing"));
    const at::Tensor a = at::randn({m, k}), b = at::randn({k, n});
    CHECK(worst_error(*product, a, b) < 10);
    CHECK(worst_error(*product, a.t().contiguous().t(), b) < 10);
    CHECK(worst_error(*product, a, b.t().contiguous().t()) < 10);
    CHECK(worst_error(*product, a.t().contiguous().t(), b.t().contiguous().t()) < 10);
  }
}

TEST_CASE("A product of nothing writes zeros, and adds none", "[kernels]") {
  const at::Tensor nothing = at::empty({70, 0}), none = at::empty({0, 70});
  for (auto* product : {&product_into, &passing_product_into}) {
    const at::Tensor out = at::ones({70, 70});
    (*product)(out, nothing, none, true);
    CHECK(at::equal(out, at::ones({70, 70})));
    (*product)(out, nothing, none, false);
    CHECK(at::equal(out, at::zeros({70, 70})));
    (*product)(none, at::empty({0, 4}), at::ones({4, 70}), true);  // no rows
  }
}
