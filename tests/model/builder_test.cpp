// A model of one's own, made with what kernel.h offers a plugin: ops that there are, and one that
// is not.
#include <torch/csrc/autograd/autograd.h>

#include <ATen/core/grad_mode.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "interpreter.h"
#include "meshwright/kernel.h"

namespace mw::test {
namespace {

class SquaredRelu final : public AutogradOp {
 public:
  std::string kind() const override { return "squared_relu"; }
  std::vector<at::Tensor> compute(const Op&, const LocalDims&,
                                  const std::vector<at::Tensor>& in) const override {
    return {at::relu(in[0]).square()};
  }
};

constexpr std::int64_t batch = 2, sequence = 3;

// One layer without attention; the embedding's weight is the head's too.
Graph mine() {
  Builder b("mine", batch, sequence, batch * sequence);
  b.graph.layers = 1;
  b.dim("vocab", 10, false);
  b.dim("hidden", 8);
  b.dim("ffn", 12, false);
  const int table = b.parameter("embedding.weight", {"vocab", "hidden"}, {}, {});
  int x = b.embedding("embedding", table);
  b.layer = 0;
  const int up = b.parameter("layers.0.up.weight", {"ffn", "hidden"}, {}, {});
  const int down = b.parameter("layers.0.down.weight", {"hidden", "ffn"}, {}, {});
  const int wide = b.linear("layers.0.up", x, up);
  const int bent = b.graph.add(b.op("layers.0.act", std::make_shared<SquaredRelu>(), {b.use(wide)}),
                               {{"", b.graph.value(wide).dims}})[0];
  x = b.add("layers.0.add", x, b.linear("layers.0.down", bent, down));
  b.layer = 1;
  b.cross_entropy(b.linear("head", x, table));
  return std::move(b.graph);
}

}  // namespace

TEST_CASE("A model of one's own with an op of one's own is what its formulas say") {
  const Graph graph = mine();
  auto given = start(graph, 7, at::kDouble);
  // Larger, so that the layer's part of the gradients is well above rounding.
  for (auto& [name, tensor] : given) {
    if (tensor.is_floating_point()) tensor = tensor * 20;
  }
  const Outcome outcome = interpret(graph, given);

  const at::AutoGradMode recording(true);
  const auto leaf = [&](const char* name) { return given.at(name).detach().requires_grad_(); };
  const at::Tensor table = leaf("embedding.weight"), up = leaf("layers.0.up.weight"),
                   down = leaf("layers.0.down.weight");
  const at::Tensor x = at::embedding(table, given.at("tokens"));
  const at::Tensor y = x + at::matmul(at::relu(at::matmul(x, up.t())).square(), down.t());
  const at::Tensor loss = at::cross_entropy_loss(at::matmul(y, table.t()).view({-1, 10}),
                                                 given.at("labels").view({-1}));
  CHECK(std::abs(loss.item<double>() - outcome.loss.item<double>()) < 1e-12);
  const auto gradients = torch::autograd::grad({loss}, {table, up, down});
  CHECK(at::allclose(gradients[0], outcome.gradients.at("embedding.weight"), 1e-10, 1e-14));
  CHECK(at::allclose(gradients[1], outcome.gradients.at("layers.0.up.weight"), 1e-10, 1e-14));
  CHECK(at::allclose(gradients[2], outcome.gradients.at("layers.0.down.weight"), 1e-10, 1e-14));
}

TEST_CASE("The builder refuses operands whose dims do not fit, and names that are taken") {
  const auto begun = [] {
    Builder b("mine", batch, sequence, batch * sequence);
    b.graph.layers = 1;
    b.decoder_dims(/*vocab=*/10, /*hidden=*/8, /*heads=*/2, /*kv_heads=*/2, /*ffn=*/12);
    return b;
  };
  const auto refused = [&](const std::function<void(Builder&, int)>& call) -> std::string {
    Builder b = begun();
    const int x = b.embed();
    try {
      call(b, x);
    } catch (const Error& error) {
      return error.problems().front().code + ": " + error.problems().front().message;
    }
    return "nothing";
  };
  CHECK(refused([](Builder& b, int x) { b.add("sum", x, b.linear_to("up", x, {"ffn"})); }) ==
        "model.dims: sum: (batch, seq, hidden) and (batch, seq, ffn) differ");
  CHECK(refused([](Builder& b, int x) { b.linear_to("up", x, {"hidden"}); }) ==
        "model.dims: up: from (batch, seq, hidden) to (hidden): hidden is in both, and a dim is "
        "either contracted or made");
  CHECK(refused([](Builder& b, int x) { b.linear_to("up", x, {"wide"}); }) ==
        "model.dims: up.weight: the model has no dim \"wide\"");
  CHECK(refused([](Builder& b, int x) {
          b.attention("see", x, x, x);
        }).starts_with("model.dims: see: q (batch, seq, hidden), k"));
  CHECK(refused([](Builder& b, int x) {
          b.gelu("act", x);
          b.gelu("act", x);
        }) == "model.twice: the model has an op \"act\" already");
  CHECK(refused([](Builder& b, int) { b.dim("ffn", 13); }) ==
        "model.twice: ffn is 12 and is to be 13 too: a dim has one size in a model");
  CHECK(refused([](Builder& b, int x) { b.head_and_loss(b.rms_norm("norm", x)); }) == "nothing");
}

}  // namespace mw::test
