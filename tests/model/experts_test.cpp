// Experts' ops against dense forms of the same, which torch differentiates.
#include <catch2/catch.hpp>

#include "expert_case.h"
#include "meshwright/ops.h"

using namespace mw;
using namespace mw::test;

namespace {

const Dims stream{"batch", "seq", "hidden"}, cells{"experts", "batch", "seq"},
    inner_weight{"experts", "expert_ffn", "hidden"},
    outer_weight{"experts", "hidden", "expert_ffn"};

Dims rows_of(const char* width) {
  Dims dims = cells;
  dims.emplace_back(width);
  return dims;
}

struct Layer {
  std::int64_t experts = 0;
  at::Tensor x, picks, weights, gate, up, down;
  Sizes sizes() const {
    return {{"batch", x.size(0)},   {"seq", x.size(1)},   {"hidden", x.size(2)},
            {"top", picks.size(2)}, {"experts", experts}, {"expert_ffn", gate.size(1)}};
  }
};

Layer layer_of(const at::Tensor& picks, std::int64_t experts, std::int64_t hidden,
               std::int64_t width) {
  const auto normal = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble); };
  return {experts,
          normal({picks.size(0), picks.size(1), hidden}),
          picks,
          normal(picks.sizes()),
          normal({experts, width, hidden}),
          normal({experts, width, hidden}),
          normal({experts, hidden, width})};
}

OpCase dispatch_case(const Layer& l, Range part) {
  OpCase c(dispatch(), {stream, chosen}, {rows_of("hidden"), cells}, l.sizes());
  c.cut("experts", part.offset, part.size, l.experts);
  c.inputs = {l.x, l.picks};
  c.wants[0] = true;
  c.sparse(cells, forward(c).rows);
  return c;
}

// An op on the rows that `c` dispatches.
OpCase rows_case(const OpCase& c, const Layer& l, Range part, const OpTypePtr& type,
                 std::vector<Dims> inputs, Dims output, Tensors values) {
  OpCase made(type, std::move(inputs), {std::move(output)}, l.sizes());
  if (made.op.has("experts")) made.cut("experts", part.offset, part.size, l.experts);
  made.sparse(cells, c.rows);
  for (std::size_t i = 0; i < values.size(); ++i) made.wants[i] = values[i].is_floating_point();
  made.inputs = std::move(values);
  return made;
}

// The output, then the gradients of x, weights, gate, up, down, of a layer that has some experts.
Tensors through(const Layer& l, Range part, const at::Tensor& seed) {
  const Dims in = rows_of("hidden"), inner = rows_of("expert_ffn");
  const auto held = [&](const at::Tensor& w) { return w.narrow(0, part.offset, part.size); };
  const OpCase sent = dispatch_case(l, part);
  const auto over_rows = [&](const OpTypePtr& type, std::vector<Dims> inputs, const Dims& output,
                             Tensors values) {
    return rows_case(sent, l, part, type, std::move(inputs), output, std::move(values));
  };
  const auto made = [](const OpCase& c) { return forward(c).outputs[0]; };
  const Tensors rows = forward(sent).outputs;
  const OpCase weights =
      over_rows(dispatch_weights(), {chosen, cells}, cells, {l.weights, rows[1]});
  const OpCase gate =
      over_rows(expert_linear(), {in, inner_weight}, inner, {rows[0], held(l.gate)});
  const OpCase up = over_rows(expert_linear(), {in, inner_weight}, inner, {rows[0], held(l.up)});
  const OpCase act =
      over_rows(swiglu(), {inner, inner, cells}, inner, {made(gate), made(up), made(weights)});
  const OpCase down =
      over_rows(expert_linear(), {inner, outer_weight}, in, {made(act), held(l.down)});
  const OpCase home =
      over_rows(combine(l.picks.size(2)), {in, cells}, stream, {made(down), rows[1]});

  const auto gradients = [](const OpCase& c, const at::Tensor& g) {
    return run(c, {g, {}}, Into::fresh).inputs;
  };
  const Tensors of_home = gradients(home, seed), of_down = gradients(down, of_home[0]);
  const Tensors of_act = gradients(act, of_down[0]);
  const Tensors of_gate = gradients(gate, of_act[0]), of_up = gradients(up, of_act[1]);
  const Tensors of_sent = gradients(sent, of_gate[0] + of_up[0]);
  const Tensors of_weights = gradients(weights, of_act[2]);
  return {made(home), of_sent[0], of_weights[0], of_gate[1], of_up[1], of_down[1]};
}

// Every expert on every token.
Tensors dense(const Layer& l, const at::Tensor& seed) {
  OpCase c(dispatch(), {stream, chosen, cells, cells, cells}, {stream}, l.sizes());
  c.inputs = {l.x, l.weights, l.gate, l.up, l.down};
  c.wants.assign(5, true);
  const Reference reference = [&](const Tensors& in) {
    const at::Tensor gate = at::einsum("bsh,efh->bsef", {in[0], in[2]});
    const at::Tensor up = at::einsum("bsh,efh->bsef", {in[0], in[3]});
    const at::Tensor y = at::einsum("bsef,ehf->bseh", {gate * at::sigmoid(gate) * up, in[4]});
    const at::Tensor factor = (in[1].unsqueeze(-1) * is_choice(l.picks, l.experts)).sum(2);
    return Tensors{at::einsum("bse,bseh->bsh", {factor, y})};
  };
  Tensors all = reference(c.inputs);
  for (at::Tensor& gradient : reference_gradients(c, reference, {seed})) all.push_back(gradient);
  return all;
}

const auto choices = {"all", "some dropped", "two experts only", "one gets all", "all dropped"};

at::Tensor picks_of(const std::string& what) {
  at::Tensor picks = random_picks(2, 9, 2, 6);
  if (what == "some dropped") picks.masked_fill_(at::rand({2, 9, 2}).lt(0.4), -1);
  if (what == "two experts only") picks = random_picks(2, 9, 2, 2).mul_(3).add_(1);
  if (what == "one gets all") picks.copy_(at::tensor({4, -1}, at::kLong));
  if (what == "all dropped") picks.fill_(-1);
  return picks;
}

const std::vector<std::vector<Range>> parts_of_experts{
    {{0, 6}}, {{0, 3}, {3, 3}}, {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}, {{0, 5}, {5, 1}}};

}  // namespace

TEST_CASE("tokens through the experts they chose: the dense form, whole and in parts",
          "[kernels]") {
  const std::string what = GENERATE(from_range(choices));
  const auto& parts = parts_of_experts[GENERATE(0, 1, 2, 3)];
  INFO(what << ", " << parts.size() << " parts");
  at::manual_seed(2);
  const Layer l = layer_of(picks_of(what), 6, 5, 4);
  const at::Tensor seed = at::randn_like(l.x);
  const Tensors expected = dense(l, seed);
  Tensors sums(3), lists[3];  // output, gradients of x, weights; of gate, up, down
  for (const Range& part : parts) {
    const Tensors made = through(l, part, seed);
    for (int i = 0; i < 3; ++i) {
      sums[i] = sums[i].defined() ? sums[i] + made[i] : made[i];
      lists[i].push_back(made[3 + i]);
    }
  }
  for (int i = 0; i < 6; ++i) {
    INFO("output, then gradients: " << i);
    CHECK(error(i < 3 ? sums[i] : at::cat(lists[i - 3]), expected[i]) < 1e-12);
  }
}

namespace {

OpCase combine_case(const OpCase& sent, const Layer& l, Range part) {
  const Tensors rows = forward(sent).outputs;
  return rows_case(sent, l, part, combine(l.picks.size(2)), {rows_of("hidden"), cells}, stream,
                   {at::randn_like(rows[0]), rows[1]});
}

OpCase weights_case(const OpCase& sent, const Layer& l, Range part) {
  OpCase c = rows_case(sent, l, part, dispatch_weights(), {chosen, cells}, cells,
                       {l.weights, forward(sent).outputs[1]});
  c.wide[0] = true;
  return c;
}

OpCase weighed_case(const OpCase& sent, const Layer& l, Range part) {
  const Tensors rows = forward(sent).outputs;
  const Dims in = rows_of("hidden");
  OpCase c = rows_case(
      sent, l, part, swiglu(), {in, in, cells}, in,
      {at::randn_like(rows[0]), at::randn_like(rows[0]), at::randn(rows[1].sizes(), at::kDouble)});
  c.wide[2] = true;
  return c;
}

OpCase linear_case(const OpCase& sent, const Layer& l, Range part) {
  return rows_case(sent, l, part, expert_linear(), {rows_of("hidden"), inner_weight},
                   rows_of("expert_ffn"),
                   {forward(sent).outputs[0], l.gate.narrow(0, part.offset, part.size)});
}

// `of_rows`: the bias is multiplied by the weights of rows.
OpCase bias_case(const OpCase& sent, const Layer& l, Range part, bool of_rows) {
  const Tensors rows = forward(sent).outputs;
  const Dims in = rows_of("hidden");
  std::vector<Dims> dims{in, {"experts", "hidden"}};
  Tensors values{at::randn_like(rows[0]),
                 at::randn({part.size, rows[0].size(-1)}, rows[0].options())};
  if (of_rows) dims.push_back(cells), values.push_back(at::randn(rows[1].sizes(), at::kDouble));
  OpCase c = rows_case(sent, l, part, expert_bias(), dims, in, values);
  if (of_rows) c.wide[2] = true;
  return c;
}

}  // namespace

TEST_CASE("rows: sent, worked on and put together", "[kernels]") {
  const std::string what = GENERATE(from_range(choices));
  const std::int64_t hidden = GENERATE(4, 3000);  // the last: several chunks
  const Range part = GENERATE(Range{0, 6}, Range{3, 3}, Range{0, 1});
  const Layer l = layer_of(picks_of(what), 6, hidden, 3);
  const OpCase sent = dispatch_case(l, part);
  Tensors places;
  std::vector<std::int64_t> counts;
  for (std::int64_t e = part.offset; e < part.offset + part.size; ++e) {
    places.push_back(at::nonzero(l.picks.flatten().eq(e)).squeeze(1));
    counts.push_back(places.back().numel());
  }
  CHECK(forward(sent).rows == counts);
  const at::Tensor order = at::cat(places);
  check_op(sent, [&](const Tensors& in) {
    return Tensors{in[0].flatten(0, 1).repeat_interleave(2, 0).index_select(0, order), order};
  });
  check_op(weights_case(sent, l, part), [&](const Tensors& in) {
    const at::Tensor lies = order.unsqueeze(1).eq(at::arange(36)).to(at::kDouble);
    return Tensors{lies.mv(in[0].flatten())};
  });
  check_op(combine_case(sent, l, part), [&](const Tensors& in) {
    const at::Tensor lies = order.unsqueeze(1).eq(at::arange(36)).to(at::kDouble);
    return Tensors{lies.view({-1, 18, 2}).sum(-1).t().mm(in[0]).view(l.x.sizes())};
  });
  check_op(weighed_case(sent, l, part), [](const Tensors& in) {
    return Tensors{at::einsum("rh,r->rh", {in[0] * at::sigmoid(in[0]) * in[1], in[2]})};
  });
  for (const bool of_rows : {false, true}) {
    check_op(bias_case(sent, l, part, of_rows), [&](const Tensors& in) {
      Tensors biases{at::zeros({0, hidden}, at::kDouble)};
      for (std::size_t e = 0; e < counts.size(); ++e)
        biases.push_back(in[1][static_cast<std::int64_t>(e)].expand({counts[e], hidden}));
      const at::Tensor all = at::cat(biases);
      return Tensors{in[0] + (of_rows ? all * in[2].unsqueeze(1) : all)};
    });
  }
  check_op(linear_case(sent, l, part), [&](const Tensors& in) {
    Tensors rows{at::zeros({0, 3}, at::kDouble)};
    std::int64_t first = 0;
    for (std::size_t e = 0; e < counts.size(); first += counts[e++]) {
      rows.push_back(at::einsum("rh,fh->rf", {in[0].narrow(0, first, counts[e]), in[1][e]}));
    }
    return Tensors{at::cat(rows)};
  });
}

TEST_CASE("experts' ops declare the memory that the allocator sees", "[kernels]") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const auto [batch, seq, hidden, experts, top] = GENERATE(from_range(shapes_of_experts));
  const at::Tensor picks = random_picks(batch, seq, top, experts);
  const Layer l = layer_of(picks, experts, hidden, 2 * hidden);
  // A product is as large as an expert has rows: as many for each.
  const at::Tensor even = at::arange(batch * seq * top, at::kLong).remainder(experts);
  const Layer fair = layer_of(even.view({batch, seq, top}), experts, hidden, 2 * hidden);
  for (const Range part : {Range{0, experts}, Range{experts / 2, experts / 4}}) {
    const OpCase sent = dispatch_case(l, part);
    check_memory(sent, type);
    check_memory(weights_case(sent, l, part), type);
    check_memory(combine_case(sent, l, part), type);
    check_memory(weighed_case(sent, l, part), type);
    check_memory(bias_case(dispatch_case(fair, part), fair, part, true), type);
    check_memory(linear_case(dispatch_case(fair, part), fair, part), type);
  }
}
