// Causal convolutions, linear recurrences and dims that become other dims: each against a plain
// loop over tokens, which torch differentiates; of parts of batch and heads, and of tokens that lie
// in another order.
#include <catch2/catch.hpp>
#include <limits>

#include "meshwright/autograd_op.h"
#include "meshwright/graph.h"
#include "op_case.h"
#include "plugins/models/ops/scan.h"

using namespace mw;
using namespace mw::test;

namespace {

// h_t = exp(decay_t) (I - b_t k_t k_t^T) h_(t-1) + b_t k_t v_t^T, y_t = q_t h_t; without a rate b,
// h_t = exp(decay_t) h_(t-1) + k_t v_t^T. `first`, `each`: the group of the first head, and the
// heads of a group.
at::Tensor token_by_token(const Tensors& in, std::int64_t each, std::int64_t offset = 0) {
  const at::Tensor& v = in[2];
  const std::int64_t heads = v.size(2);
  const at::Tensor group =
      at::arange(offset, offset + heads, at::kLong).floor_divide(each) - offset / each;
  const at::Tensor q = in[0].index_select(2, group), k = in[1].index_select(2, group);
  at::Tensor h = at::zeros({v.size(0), heads, q.size(3), v.size(3)}, v.options());
  Tensors made;
  for (std::int64_t t = 0; t < v.size(1); ++t) {
    const auto at_t = [t](const at::Tensor& all) { return all.select(1, t); };
    h = h * at_t(in[3]).exp().unsqueeze(-1).unsqueeze(-1);
    at::Tensor value = at_t(v);
    if (in.size() > 4) {
      value = value - at::einsum("bhn,bhnp->bhp", {at_t(k), h});
      value = value * at_t(in[4]).unsqueeze(-1);
    }
    h = h + at_t(k).unsqueeze(-1) * value.unsqueeze(-2);
    made.push_back(at::einsum("bhn,bhnp->bhp", {at_t(q), h}));
  }
  return at::stack(made, 1);
}

OpCase scan_case(const ScanOptions& options, std::int64_t seq, std::int64_t groups,
                 std::int64_t heads) {
  const Dims of_group{"batch", "seq", groups == heads ? "heads" : "groups", "state"},
      v{"batch", "seq", "heads", "width"}, of_head{"batch", "seq", "heads"};
  std::vector<Dims> inputs{of_group, of_group, v, of_head};
  if (options.delta) inputs.push_back(of_head);
  OpCase c(scan(options), inputs, {v},
           {{"batch", 2},
            {"seq", seq},
            {"groups", groups},
            {"heads", heads},
            {"state", 5},
            {"width", 3}});
  for (std::size_t i = 0; i < inputs.size(); ++i) c.real(i);
  c.inputs[3] = -at::softplus(c.inputs[3]);
  if (options.delta) {
    c.inputs[4] = at::sigmoid(c.inputs[4]);
    c.inputs[1] = c.inputs[1] / c.inputs[1].norm(2, {-1}, true);
  }
  return c;
}

// The ops that compute a case's op in so many parts of the sequence.
Graph in_parts(const OpCase& c, std::int64_t count) {
  Graph whole;
  for (const Dim dim : c.op.space()) whole.set_dim(dim, c.dims.at(dim).size);
  whole.set_dim("parts", count);
  Op op = c.op;
  for (Use& use : op.inputs) use.value = whole.add_data("x", use.dims, Scalar::real);
  whole.add(op, {{"y", op.output_dims[0]}});
  return whole.with_parts({{0, "parts"}});
}

}  // namespace

TEST_CASE("a scan in chunks is the recurrence", "[kernels]") {
  const bool delta = GENERATE(false, true);
  const std::int64_t seq = GENERATE(1, 7, 16, 21), chunk = GENERATE(1, 4, 16, 64);
  const std::int64_t groups = GENERATE(1, 2, 4);
  const OpCase c = scan_case({chunk, delta}, seq, groups, 4);
  check_op(c, [&](const Tensors& in) { return Tensors{token_by_token(in, 4 / groups)}; });
}

TEST_CASE("a scan of some heads, whose groups are cut alike or whole") {
  const bool delta = GENERATE(false, true);
  OpCase c = scan_case({4, delta}, 9, 2, 3);  // heads 2, 3, 4 of 8, and groups 0 and 1 of 2
  c.cut("heads", 2, 3, 8);
  check_op(c, [](const Tensors& in) { return Tensors{token_by_token(in, 4, 2)}; });
  OpCase alike = scan_case({4, delta}, 9, 2, 4);  // the second half of both
  alike.cut("heads", 4, 4, 8);
  alike.cut("groups", 2, 2, 4);
  check_op(alike, [](const Tensors& in) { return Tensors{token_by_token(in, 2, 4)}; });
}

TEST_CASE("a scan of tokens that lie in another order") {
  OpCase c = scan_case({3, true}, 8, 4, 4);
  c.cut("seq", {{0, 2}, {6, 2}, {2, 4}}, 8);
  const at::Tensor lies = at::tensor({0, 1, 6, 7, 2, 3, 4, 5}, at::kLong);
  check_op(c, [&lies](const Tensors& in) {
    Tensors sorted;
    for (const at::Tensor& one : in) sorted.push_back(one.index_select(1, lies.argsort()));
    return Tensors{token_by_token(sorted, 1).index_select(1, lies)};
  });
}

TEST_CASE("a scan in parts is the scan") {
  const bool delta = GENERATE(false, true);
  const std::int64_t seq = GENERATE(4, 9, 24), count = GENERATE(1, 2, 4), groups = GENERATE(2, 4);
  const OpCase c = scan_case({3, delta}, seq, groups, 4);
  const Graph parts = in_parts(c, count);
  const int made = parts.ops().back().outputs[0];
  REQUIRE(parts.ops().size() == 3);
  CHECK(parts.find("y") == made);
  CHECK(parts.value(made).producer == 2);
  // Computes all ops, and asks torch for the gradients.
  const auto all = [&parts, made](const Tensors& in) {
    std::map<int, at::Tensor> values;
    for (std::size_t i = 0; i < in.size(); ++i) values[static_cast<int>(i)] = in[i];
    for (const Op& each : parts.ops()) {
      LocalDims dims;
      for (const Dim dim : each.space()) dims.set({dim, 0, parts.size(dim), parts.size(dim), {}});
      Tensors inputs;
      for (const Use& use : each.inputs) inputs.push_back(values.at(use.value));
      const Tensors outputs =
          dynamic_cast<const AutogradOp&>(*each.type).compute(each, dims, inputs);
      for (std::size_t o = 0; o < outputs.size(); ++o) values[each.outputs[o]] = outputs[o];
    }
    return Tensors{values.at(made)};
  };
  check_op(c, all);
}

TEST_CASE("a scan of decays that are strong, or forget all, stays finite") {
  for (const double decay : {-60.0, -800.0, -std::numeric_limits<double>::infinity(), 0.0}) {
    OpCase c = scan_case({4, false}, 13, 2, 4);
    c.inputs[3].fill_(decay);
    check_op(c, [](const Tensors& in) { return Tensors{token_by_token(in, 2)}; });
  }
}

TEST_CASE("a scan in fp32 and bf16 is near the one in fp64") {
  const bool delta = GENERATE(false, true);
  const OpCase c = scan_case({16, delta}, 80, 2, 4);
  const at::Tensor exact = token_by_token(c.inputs, 2);
  for (const auto& [type, bound] : {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 0.03)}) {
    const OpCase less = in_type(c, type);
    const at::Tensor seed = at::zeros_like(exact).to(type);
    const at::Tensor made = run(less, {seed}, Into::fresh).outputs[0];
    CHECK(made.scalar_type() == type);
    CHECK(error(made.to(at::kDouble), exact) < bound);
  }
}

TEST_CASE("convolutions of each channel along the sequence", "[kernels]") {
  const std::int64_t kernel = GENERATE(1, 4, 9), seq = GENERATE(1, 3, 12);
  const bool bias = GENERATE(false, true), single = GENERATE(false, true);
  std::vector<Dims> inputs{{"batch", "seq", "heads", "width"}, {"heads", "width"}};
  if (single) inputs[1].emplace_back("single");
  inputs[1].emplace_back("kernel");
  if (bias) inputs.push_back({"heads", "width"});
  OpCase c(
      conv(), inputs, {inputs[0]},
      {{"batch", 2}, {"seq", seq}, {"heads", 2}, {"width", 3}, {"single", 1}, {"kernel", kernel}});
  for (std::size_t i = 0; i < inputs.size(); ++i) c.real(i);
  check_op(c, [&](const Tensors& in) {
    const at::Tensor x = in[0].flatten(2).transpose(1, 2);
    const auto b = bias ? std::optional(in[2].flatten()) : std::nullopt;
    const at::Tensor y = at::conv1d(x, in[1].reshape({6, 1, kernel}), b, 1, kernel - 1, 1, 6);
    return Tensors{y.narrow(2, 0, seq).transpose(1, 2).reshape(in[0].sizes())};
  });
}

TEST_CASE("a convolution of tokens that lie in another order") {
  const Dims x{"batch", "seq", "hidden"};
  OpCase c(conv(), {x, {"hidden", "kernel"}}, {x},
           {{"batch", 2}, {"seq", 8}, {"hidden", 3}, {"kernel", 4}});
  c.real(0);
  c.real(1);
  c.cut("seq", {{4, 4}, {0, 4}}, 8);
  check_op(c, [](const Tensors& in) {
    const at::Tensor sorted = in[0].roll(4, 1).transpose(1, 2);
    const at::Tensor y = at::conv1d(sorted, in[1].unsqueeze(1), {}, 1, 3, 1, 3).narrow(2, 0, 8);
    return Tensors{y.transpose(1, 2).roll(4, 1)};
  });
}

TEST_CASE("dims that become other dims") {
  OpCase c(reshaped(2, 2), {{"batch", "heads", "width"}}, {{"batch", "groups", "wide"}},
           {{"batch", 2}, {"heads", 6}, {"width", 4}, {"groups", 2}, {"wide", 12}});
  c.real(0);
  check_op(c, [](const Tensors& in) { return Tensors{in[0].reshape({2, 2, 12})}; });
  check_memory(c, at::kFloat);
  // The second group, of all heads and of those that it has; both groups, of some heads.
  c.cut("groups", 1, 1, 2);
  check_op(c, [](const Tensors& in) { return Tensors{in[0].narrow(1, 3, 3).reshape({2, 1, 12})}; });
  c.cut("heads", 3, 3, 6);
  c.real(0);
  check_op(c, [](const Tensors& in) { return Tensors{in[0].reshape({2, 1, 12})}; });
  c.cut("groups", 0, 2, 2);
  check_op(c, [](const Tensors& in) {
    const at::Tensor made = in[0].reshape({2, 1, 12});
    return Tensors{at::cat({at::zeros_like(made), made}, 1)};
  });
}

TEST_CASE("scans and convolutions hold what they declare") {
  const bool delta = GENERATE(false, true);
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  check_memory(scan_case({16, delta}, 64, 2, 4), type);
  check_memory(scan_case({16, delta}, 64, 4, 4), type);
  const Dims x{"batch", "seq", "hidden"};
  OpCase c(conv(), {x, {"hidden", "kernel"}}, {x},
           {{"batch", 2}, {"seq", 64}, {"hidden", 24}, {"kernel", 4}});
  c.real(0);
  c.real(1);
  check_memory(c, type);
}

TEST_CASE("what scans and convolutions in parts add holds what it declares") {
  const bool delta = GENERATE(false, true);
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble);
  const Dims x{"batch", "seq", "hidden"};
  OpCase convolves(conv(), {x, {"hidden", "kernel"}}, {x},
                   {{"batch", 2}, {"seq", 64}, {"hidden", 24}, {"kernel", 4}});
  for (const OpCase& c : {scan_case({16, delta}, 64, 2, 4), convolves}) {
    const Graph parts = in_parts(c, 4);
    for (const Op& op : parts.ops()) {
      std::vector<Dims> inputs;
      std::map<std::string, std::int64_t> sizes;
      for (const Use& use : op.inputs) inputs.push_back(use.dims);
      for (const Dim dim : op.space()) sizes[dim.name()] = parts.size(dim);
      OpCase one(op.type, inputs, {op.output_dims.begin(), op.output_dims.end()}, sizes);
      for (std::size_t i = 0; i < inputs.size(); ++i) one.real(i);
      check_memory(one, type);
    }
  }
}

TEST_CASE("gradients of scans and convolutions lie as their operands do") {
  const OpCase scans = scan_case({16, true}, 40, 2, 4);
  const Dims x{"batch", "seq", "hidden"};
  OpCase convolves(conv(), {x, {"hidden", "kernel"}}, {x},
                   {{"batch", 2}, {"seq", 9}, {"hidden", 3}, {"kernel", 4}});
  convolves.real(0);
  convolves.real(1);
  for (const OpCase& c : {scans, convolves}) {
    const Gradients made =
        run(c, {at::randn(c.shape(c.op.output_dims[0]), at::kDouble)}, Into::fresh);
    CHECK(made.outputs[0].is_contiguous());
    for (const at::Tensor& gradient : made.inputs) CHECK(gradient.is_contiguous());
  }
}
