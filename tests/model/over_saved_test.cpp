// Gradients that lie on the saved inputs that they are made of: the check that op_case.h declares,
// and that it sees what reads an input after overwriting it.
#include <catch2/catch.hpp>

#include "op_case.h"

namespace mw::test {

std::vector<std::string> faults_over_saved(const OpCase& c) {
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < c.wants.size(); ++i) {
    if (c.wants[i]) wanted.push_back(i);
  }
  std::vector<std::string> faults;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    OpCase typed = in_type(c, type);
    Tensors seeds;
    for (const at::Tensor& output : forward(typed).outputs)
      seeds.push_back(output.is_floating_point() ? at::randn_like(output) : at::Tensor());
    for (std::size_t set = 1; set < std::size_t{1} << wanted.size(); ++set) {
      std::string name = c.op.name + " in " + at::toString(type) + ", gradients of";
      for (std::size_t w = 0; w < wanted.size(); ++w) {
        typed.wants[wanted[w]] = (set >> w & 1) != 0;
        if (typed.wants[wanted[w]]) name += " " + std::to_string(wanted[w]);
      }
      OpCase own = typed;
      for (at::Tensor& input : own.inputs) input = input.clone();
      const Tensors fresh = run(typed, seeds, Into::fresh).inputs;
      const Tensors over = run(own, seeds, Into::saved).inputs;
      for (std::size_t i = 0; i < typed.inputs.size(); ++i) {
        if (typed.wants[i] && !at::equal(over[i], fresh[i]))
          faults.push_back(name + ": that of " + std::to_string(i) + " differs");
        if (!at::equal(own.inputs[i], typed.inputs[i]))
          faults.push_back(name + ": overwrites input " + std::to_string(i));
      }
    }
  }
  return faults;
}

TEST_CASE(
    "the check over saved inputs sees what reads one that it overwrote, and what spoils one") {
  // a b, whose gradients may lie on a and b.
  struct Product : OpType {
    enum class Fault { none, late, spoils };
    explicit Product(Fault what) : fault(what) {}
    Fault fault;
    std::string kind() const override { return "product"; }
    OpTraits traits(const Op&) const override {
      OpTraits traits;
      traits.backward_reads_input = {true, true};
      traits.backward_reads_output = {false};
      traits.gradient_passes = {false, false};
      traits.backward_may_overwrite_saved = true;
      return traits;
    }
    void forward(const Op&, OpCall& call) const override {
      call.outputs = {call.inputs[0] * call.inputs[1]};
    }
    void backward(const Op&, OpCall& call) const override {
      const at::Tensor& dy = call.grad_outputs[0];
      const at::Tensor a = fault == Fault::late ? call.inputs[0] : call.inputs[0].clone();
      const at::Tensor b = call.inputs[1].clone();
      for (const std::size_t i : {0, 1}) {
        if (!call.wants[i]) continue;
        at::Tensor& to = call.grad_inputs[i];
        if (!to.defined()) to = at::empty_like(dy);
        at::mul_out(to, dy, i == 0 ? b : a);
      }
      if (fault == Fault::spoils && call.grad_inputs[0].is_same(call.inputs[0]))
        call.inputs[1].zero_();
    }
    Cost cost(const Op&, Piece, const LocalDims&, int) const override { return {}; }
  };
  const auto faults = [](Product::Fault fault) {
    const Dims dims{"batch", "ffn"};
    OpCase c(std::make_shared<Product>(fault), {dims, dims}, {dims}, {{"batch", 5}, {"ffn", 3}});
    c.real(0);
    c.real(1);
    return faults_over_saved(c);
  };
  CHECK(faults(Product::Fault::none).empty());
  const std::vector<std::string> late = faults(Product::Fault::late);
  REQUIRE(late.size() == 3);  // in each type where both are wanted
  CHECK(late.front() == "product in Double, gradients of 0 1: that of 1 differs");
  const std::vector<std::string> spoils = faults(Product::Fault::spoils);
  REQUIRE(!spoils.empty());
  CHECK(spoils.front() == "product in Double, gradients of 0: overwrites input 1");
}

}  // namespace mw::test
