// Routing's ops and the losses that keep choices even, against dense forms of the same.
#include <catch2/catch.hpp>

#include "expert_case.h"
#include "meshwright/ops.h"

using namespace mw;
using namespace mw::test;

namespace {

const Dims logit_dims{"batch", "seq", "scores"};

at::Tensor affinities(const at::Tensor& logits, RouterScore score) {
  if (score == RouterScore::sigmoid) return 1 / (1 + at::exp(-logits));
  return logits.exp() / logits.exp().sum(-1, true);
}

// The highest, then the highest of the others, and so on.
at::Tensor highest(const at::Tensor& numbers, std::int64_t top) {
  at::Tensor left = numbers.clone();
  Tensors picks;
  for (std::int64_t k = 0; k < top; ++k) {
    picks.push_back(left.argmax(-1, true));
    left.scatter_(-1, picks.back(), -1e30);
  }
  return at::cat(picks, -1);
}

}  // namespace

TEST_CASE("route: chosen by affinity and bias, weighed by affinity", "[kernels]") {
  const RouterOptions options{GENERATE(RouterScore::softmax, RouterScore::sigmoid),
                              GENERATE(true, false), GENERATE(1.0, 2.5)};
  const std::int64_t experts = 7, top = GENERATE(1, 2, 3, 7);
  const bool constant = top == 1 && options.normalise;  // the weight
  OpCase c(route(options), {logit_dims, {"scores"}}, {chosen, chosen},
           {{"batch", 3}, {"seq", 5}, {"scores", experts}, {"top", top}});
  c.real(0);
  c.real(1);
  const at::Tensor free = affinities(c.inputs[0], options.score);
  const at::Tensor picks = highest(free + c.inputs[1], top);
  CHECK_FALSE(picks.equal(highest(free, top)));
  c.expert_loads[1] = is_choice(picks, experts).sum({0, 1, 2});
  if (constant) {
    const Tensors made = run(c, {at::randn({3, 5, 1}, at::kDouble), {}}, Into::fresh).inputs;
    CHECK(made[0].abs().max().item<double>() < 1e-15);
    c.no_grad(0);
  }
  check_op(c, [&](const Tensors& in) {
    const at::Tensor s = affinities(in[0], options.score).unsqueeze(-2);
    at::Tensor weights = (s * is_choice(picks, experts)).sum(-1);
    if (options.normalise) weights = weights / weights.sum(-1, true);
    return Tensors{weights * options.scale, picks};
  });
}

namespace {

// `rank` of one token, lowest outside of the groups that it may choose, said expert by expert.
at::Tensor within_groups(const at::Tensor& rank, const RouterOptions& options) {
  const std::int64_t size = rank.size(0) / options.groups;
  std::vector<std::pair<double, std::int64_t>> heights;
  for (std::int64_t g = 0; g < options.groups; ++g) {
    std::vector<double> of_group;
    for (std::int64_t e = 0; e < size; ++e) of_group.push_back(rank[g * size + e].item<double>());
    std::sort(of_group.rbegin(), of_group.rend());
    const bool two = options.score == RouterScore::sigmoid && size > 1;
    heights.emplace_back(two ? of_group[0] + of_group[1] : of_group[0], g);
  }
  std::sort(heights.rbegin(), heights.rend());
  at::Tensor open = at::full_like(rank, -1e20);
  for (std::int64_t i = 0; i < options.group_top; ++i) {
    const std::int64_t first = heights[static_cast<std::size_t>(i)].second * size;
    open.narrow(0, first, size).copy_(rank.narrow(0, first, size));
  }
  return open;
}

}  // namespace

TEST_CASE("route: within the groups that stand highest", "[kernels]") {
  const RouterScore score = GENERATE(RouterScore::softmax, RouterScore::sigmoid);
  const auto [groups, group_top, top] = GENERATE(table<std::int64_t, std::int64_t, std::int64_t>(
      {{2, 1, 3}, {3, 2, 4}, {4, 2, 6}, {6, 3, 6}, {12, 3, 3}, {4, 4, 5}, {1, 1, 5}}));
  const RouterOptions options{score, GENERATE(true, false), 2.5, groups, group_top};
  const std::int64_t experts = 12;
  OpCase c(route(options), {logit_dims, {"scores"}}, {chosen, chosen},
           {{"batch", 3}, {"seq", 5}, {"scores", experts}, {"top", top}});
  c.real(0);
  c.real(1);
  c.inputs[1].mul_(0.1);  // tokens differ in their choices
  const at::Tensor rank = affinities(c.inputs[0], score) + c.inputs[1];
  at::Tensor open = at::empty_like(rank);
  for (std::int64_t b = 0; b < 3; ++b)
    for (std::int64_t t = 0; t < 5; ++t) open[b][t].copy_(within_groups(rank[b][t], options));
  const at::Tensor picks = highest(open, top);
  const bool free = group_top == groups || groups == experts;
  INFO(groups << " groups, of which " << group_top << ", " << top << " experts");
  CHECK(picks.equal(highest(rank, top)) == free);
  c.expert_loads[1] = is_choice(picks, experts).sum({0, 1, 2});
  check_op(c, [&](const Tensors& in) {
    const at::Tensor s = affinities(in[0], score).unsqueeze(-2);
    at::Tensor weights = (s * is_choice(picks, experts)).sum(-1);
    if (options.normalise) weights = weights / weights.sum(-1, true);
    return Tensors{weights * options.scale, picks};
  });
}

TEST_CASE("admit: first choices before second ones, earlier positions before later ones",
          "[kernels]") {
  using Runs = std::vector<Range>;
  const std::int64_t batch = 3, seq = 24, top = 3, experts = 5;
  const std::int64_t capacity = GENERATE(0, 1, 4, 11, 72);
  const Runs runs = GENERATE(Runs{}, Runs{{0, 24}}, Runs{{0, 6}, {18, 6}, {6, 6}, {12, 6}},
                             Runs{{23, 1}, {5, 10}, {0, 5}, {15, 8}});
  OpCase c(admit(capacity, experts), {chosen}, {chosen},
           {{"batch", batch}, {"seq", seq}, {"top", top}});
  if (!runs.empty()) c.cut("seq", runs, seq);
  c.inputs[0] = random_picks(batch, seq, top, experts);
  std::vector<std::int64_t> lies(seq);  // of each position
  for (std::int64_t j = 0; const Range& run : runs.empty() ? Runs{{0, seq}} : runs) {
    for (std::int64_t i = 0; i < run.size; ++i) lies[run.offset + i] = j++;
  }
  at::Tensor expected = c.inputs[0].clone();
  auto pick = expected.accessor<std::int64_t, 3>();
  for (std::int64_t b = 0; b < batch; ++b) {
    std::vector<std::int64_t> taken(experts, 0);
    for (std::int64_t k = 0; k < top; ++k) {
      for (const std::int64_t j : lies) {
        if (taken[pick[b][j][k]] < capacity) {
          ++taken[pick[b][j][k]];
        } else {
          pick[b][j][k] = -1;
        }
      }
    }
  }
  CHECK(expected.eq(-1).any().item<bool>() == (capacity < 24));
  CHECK(forward(c).outputs[0].equal(expected));
}

TEST_CASE("admit: an expert takes the tokens with the largest weights, however they lie",
          "[kernels]") {
  using Runs = std::vector<Range>;
  const std::int64_t batch = 3, seq = 24, experts = 5;
  const std::int64_t capacity = GENERATE(1, 4, 24);
  const Runs runs = GENERATE(Runs{}, Runs{{0, 6}, {18, 6}, {6, 6}, {12, 6}});
  OpCase c(admit(capacity, experts), {chosen, chosen}, {chosen},
           {{"batch", batch}, {"seq", seq}, {"top", experts}});
  if (!runs.empty()) c.cut("seq", runs, seq);
  const at::Tensor affinity = at::rand({batch, seq, experts}, at::kDouble);
  const auto [weights, picks] = affinity.sort(-1, true);
  c.inputs = {picks, weights};
  const at::Tensor highest = std::get<1>(affinity.topk(capacity, 1));
  const at::Tensor taken = at::zeros_like(affinity).scatter_(1, highest, 1).gather(-1, picks);
  CHECK(forward(c).outputs[0].equal(at::where(taken.eq(1), picks, -1)));
  check_memory(c, at::kFloat);
}

namespace {

OpCase stats_case(RouterScore score, const at::Tensor& logits, const at::Tensor& picks) {
  OpCase c(balance_stats(score), {logit_dims, chosen}, {{"load", "batch", "scores"}},
           {{"batch", picks.size(0)},
            {"seq", picks.size(1)},
            {"top", picks.size(2)},
            {"scores", logits.size(2)},
            {"load", 2}});
  c.inputs = {logits, picks};
  c.wants[0] = true;
  return c;
}

OpCase loss_case(double factor, const at::Tensor& stats) {
  OpCase c(balance_loss(factor), {{"load", "batch", "scores"}}, {{}},
           {{"load", 2}, {"batch", stats.size(1)}, {"scores", stats.size(2)}});
  c.inputs[0] = stats;
  c.wants[0] = true;
  return c;
}

}  // namespace

TEST_CASE("balance: Switch's loss of each sequence, and of parts of sequences", "[kernels]") {
  const RouterScore score = GENERATE(RouterScore::softmax, RouterScore::sigmoid);
  const std::int64_t batch = 3, seq = 12, top = GENERATE(1, 2), experts = 5;
  const at::Tensor logits = at::randn({batch, seq, experts}, at::kDouble);
  const at::Tensor picks = random_picks(batch, seq, top, experts);
  const OpCase stats = stats_case(score, logits, picks);
  check_op(stats, [&](const Tensors& in) {
    const at::Tensor s = affinities(in[0], score), p = s / s.sum(-1, true);
    return Tensors{at::stack({is_choice(in[1], experts).sum({1, 2}), p.sum(1)})};
  });
  const at::Tensor whole = forward(stats).outputs[0];

  at::Tensor sum = at::zeros_like(whole);
  for (const Range part : {Range{0, 5}, Range{5, 1}, Range{6, 6}}) {
    const auto cut = [&](const at::Tensor& t) { return t.narrow(1, part.offset, part.size); };
    sum += forward(stats_case(score, cut(logits), cut(picks))).outputs[0];
  }
  CHECK(error(sum, whole) < 1e-12);

  // The factor of a router's balancing loss; the step has 4 microbatches.
  const double alpha = 0.01, sequences = 4 * batch;
  const double factor = alpha * experts / (top * seq * seq) / sequences;
  check_op(loss_case(0.3, whole), [&](const Tensors& in) {
    return Tensors{0.3 * at::einsum("be,be->", {in[0][0], in[0][1]})};
  });
  at::Tensor expected = at::zeros({}, at::kDouble);
  for (std::int64_t b = 0; b < batch; ++b) {
    const at::Tensor s = affinities(logits[b], score), p = (s / s.sum(-1, true)).mean(0);
    const at::Tensor f = is_choice(picks[b], experts).flatten(0, 1).mean(0);
    expected += alpha * experts * f.dot(p) / sequences;
  }
  CHECK(error(forward(loss_case(factor, whole)).outputs[0], expected) < 1e-12);
}

TEST_CASE("z_loss", "[kernels]") {
  OpCase c(z_loss(0.3), {logit_dims}, {{}}, {{"batch", 3}, {"seq", 5}, {"scores", 7}});
  c.real(0);
  check_op(c, [](const Tensors& in) {
    const at::Tensor lse = in[0].exp().sum(-1).log();
    return Tensors{0.3 * lse.pow(2).sum()};
  });
}

TEST_CASE("routing's ops declare the memory that the allocator sees", "[kernels]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const auto [batch, seq, hidden, experts, top] = GENERATE(from_range(shapes_of_experts));
  const at::Tensor picks = random_picks(batch, seq, top, experts);
  const Sizes sizes{{"batch", batch}, {"seq", seq}, {"scores", experts}, {"top", top}, {"load", 2}};
  const at::Tensor logits = at::randn({batch, seq, experts}, at::kDouble);
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    for (const bool normalise : {false, true}) {
      INFO((score == RouterScore::softmax ? "softmax" : "sigmoid") << normalise);
      OpCase c(route({score, normalise, 1}), {logit_dims, {"scores"}}, {chosen, chosen}, sizes);
      c.real(0);
      c.real(1);
      c.expert_loads[1] = at::zeros({experts});
      check_memory(c, type);
      c = OpCase(route({score, normalise, 1, experts / 2, experts / 4}), {logit_dims, {"scores"}},
                 {chosen, chosen}, sizes);
      c.real(0);
      c.real(1);
      c.expert_loads[1] = at::zeros({experts});
      if (experts / 2 >= top) check_memory(c, type);
    }
    check_memory(stats_case(score, logits, picks), type);
  }
  OpCase admitted(admit(seq * top / experts, experts), {chosen}, {chosen}, sizes);
  admitted.inputs[0] = picks;
  check_memory(admitted, type);
  admitted.cut("seq", {{seq / 2, seq - seq / 2}, {0, seq / 2}}, seq);
  check_memory(admitted, type);
  OpCase loss = loss_case(0.1, at::randn({2, batch, experts}, at::kDouble));
  loss.wide[0] = true;
  check_memory(loss, type);
  OpCase z(z_loss(0.1), {logit_dims}, {{}}, sizes);
  z.real(0);
  check_memory(z, type);
}
