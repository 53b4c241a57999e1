// Attention of blocks by the loops for CPUs, beside the same written with plain products in fp64:
// of all sorts of sight, sizes that fill no cache line, widths that differ, strided operands.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "plugins/models/ops/attend.h"

using namespace mw;
using kernel::Sight;

namespace {

struct Sizes {
  std::int64_t queries, keys, width, value_width;
  Sight sight;
};

at::Tensor heads_first(const at::Tensor& t) {
  return t.to(at::kDouble).transpose(1, 2);
}

struct Plain {
  at::Tensor out, lse, q, k, v;
};

// Operands (batch, tokens, heads, width), and what is made of them.
Plain plain(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
            Sight sight) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const at::Tensor qh = heads_first(q), kh = heads_first(k), vh = heads_first(v),
                   gh = heads_first(dout);
  at::Tensor scores = at::matmul(qh, kh.transpose(2, 3)).mul_(scale);
  if (sight.kind != Sight::Kind::all) {
    const at::Tensor ones = at::ones({q.size(1), k.size(1)}, at::kBool);
    const at::Tensor hidden = sight.causal() ? ones.triu(1) : ones.tril(sight.diagonal - 1);
    scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor lse = scores.logsumexp(-1), p = (scores - lse.unsqueeze(-1)).exp();
  const at::Tensor out = at::matmul(p, vh), dp = at::matmul(gh, vh.transpose(2, 3));
  const at::Tensor ds = (dp - (gh * out).sum(-1, true)) * p * scale;
  const auto back = [](const at::Tensor& t) { return t.transpose(1, 2); };
  return {back(out), lse, back(at::matmul(ds, kh)), back(at::matmul(ds.transpose(2, 3), qh)),
          back(at::matmul(p.transpose(2, 3), gh))};
}

void check(const Sizes& s, at::ScalarType type) {
  CAPTURE(s.queries, s.keys, s.width, s.value_width, static_cast<int>(s.sight.kind),
          s.sight.diagonal, at::toString(type));
  constexpr std::int64_t batch = 2, heads = 3;
  // The heads of a wider tensor, whose rows lie apart.
  const auto tensor = [&](std::int64_t tokens, std::int64_t width) {
    return at::randn({batch, tokens + 1, heads + 1, width + 3}, at::kDouble)
        .to(type)
        .narrow(1, 1, tokens)
        .narrow(2, 0, heads)
        .narrow(3, 0, width);
  };
  const at::Tensor q = tensor(s.queries, s.width), k = tensor(s.keys, s.width),
                   v = tensor(s.keys, s.value_width), dout = tensor(s.queries, s.value_width);
  const kernel::Attended made = kernel::attend(q, k, v, s.sight);
  const kernel::AttendGradients gradients = kernel::attend_backward(dout, q, k, v, made, s.sight);
  const Plain expected = plain(dout, q, k, v, s.sight);
  const double digits = type == at::kDouble ? 1e-13 : type == at::kFloat ? 2e-5 : 6e-2;
  const auto near = [&](const at::Tensor& x, const at::Tensor& y) {
    REQUIRE(x.sizes() == y.sizes());
    const double most = 1 + y.abs().max().item<double>();
    CHECK((x.to(at::kDouble) - y).abs().max().item<double>() < digits * most);
  };
  near(made.out, expected.out);
  near(made.lse, expected.lse);
  near(gradients.q, expected.q);
  near(gradients.k, expected.k);
  near(gradients.v, expected.v);
}

}  // namespace

TEST_CASE("Attention of a block on a CPU is that of plain products", "[kernels]") {
  at::manual_seed(7);
  using Kind = Sight::Kind;
  const std::vector<Sizes> all{
      {1, 1, 4, 4, {Kind::same, 0}},       {7, 7, 5, 5, {Kind::same, 0}},
      {130, 130, 32, 32, {Kind::same, 0}}, {49, 49, 33, 18, {Kind::same, 0}},
      {40, 90, 8, 24, {Kind::all, 0}},     {97, 16, 64, 64, {Kind::all, 0}},
      {60, 60, 16, 16, {Kind::band, -20}}, {50, 100, 16, 7, {Kind::band, 40}},
      {20, 20, 16, 16, {Kind::band, 0}}};
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
    for (const Sizes& sizes : all) check(sizes, type);
}

TEST_CASE("Attention on a CPU does not depend on the number of threads", "[kernels]") {
  at::manual_seed(8);
  const auto tensor = [] { return at::randn({2, 70, 3, 16}, at::kFloat); };
  const at::Tensor q = tensor(), k = tensor(), v = tensor(), dout = tensor();
  const Sight sight{Sight::Kind::same, 0};
  const int before = at::get_num_threads();
  const auto all = [&](int threads) {
    at::set_num_threads(threads);
    const kernel::Attended made = kernel::attend(q, k, v, sight);
    const kernel::AttendGradients g = kernel::attend_backward(dout, q, k, v, made, sight);
    return std::vector<at::Tensor>{made.out, made.lse, g.q, g.k, g.v};
  };
  const std::vector<at::Tensor> one = all(1), three = all(3);
  at::set_num_threads(before);
  for (std::size_t n = 0; n < one.size(); ++n) CHECK(at::equal(one[n], three[n]));
}
