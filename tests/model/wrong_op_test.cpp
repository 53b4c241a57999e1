// The gradient check of op_case.h catches a wrong op.
#include <catch2/catch.hpp>

#include "op_case.h"

namespace mw::test {

TEST_CASE("the gradient check sees a wrong derivative") {
  struct Wrong : OpType {
    std::string kind() const override { return "wrong"; }
    OpTraits traits(const Op&) const override {
      OpTraits traits;
      traits.backward_reads_input = {true};
      traits.backward_reads_output = {false};
      traits.gradient_passes = {false};
      return traits;
    }
    void forward(const Op&, OpCall& call) const override { call.outputs = {call.inputs[0].exp()}; }
    void backward(const Op&, OpCall& call) const override {
      call.grad_inputs[0] = call.inputs[0].exp() * 1.0000001;
    }
    Cost cost(const Op&, Piece, const LocalDims&, int) const override { return {}; }
  };
  OpCase c(std::make_shared<Wrong>(), {{"batch"}}, {{"batch"}}, {{"batch", 5}});
  c.real(0);
  const Tensors seeds{at::ones({5}, at::kDouble)};
  const Tensors expected = reference_gradients(
      c, [](const Tensors& in) { return Tensors{in[0].exp()}; }, seeds);
  CHECK(error(run(c, seeds, Into::fresh).inputs[0], expected[0]) > 1e-8);
}

}  // namespace mw::test
