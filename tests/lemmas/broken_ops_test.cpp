// Ops that are wrong in one way each on parts, or in what a call promises: each is refused by the
// lemma that it breaks, with a message that names the fault.
#include <catch2/catch.hpp>

#include "written_op.h"

using namespace mw;
using namespace mw::test;

TEST_CASE("A right op of a stranger holds") {
  const WithOp made = graph_with(std::make_shared<Scaled>());
  must_hold(made, cut_by(made, {"batch"}));
  must_hold(made, cut_by(made, {"seq", "hidden"}));
}

TEST_CASE("An op that ignores that gradients are added is refused") {
  struct Ignores : Scaled {
    void backward(const Op& op, OpCall& call) const override {
      call.accumulate.assign(call.accumulate.size(), false);
      Scaled::backward(op, call);
    }
  };
  const Problem problem = refusal(graph_with(std::make_shared<Ignores>()),
                                  cut_by(graph_with(std::make_shared<Ignores>()), {}));
  CHECK(says(problem, "is not added to what is there, but overwrites it"));
  CHECK(says(problem, "written (written), backward"));
}

TEST_CASE("An op that leaves a gradient elsewhere than in the given tensor is refused") {
  struct Elsewhere : Scaled {
    void backward(const Op& op, OpCall& call) const override {
      call.grad_inputs.assign(2, at::Tensor());
      Scaled::backward(op, call);
    }
  };
  const WithOp made = graph_with(std::make_shared<Elsewhere>());
  CHECK(says(refusal(made, cut_by(made, {})), "is not written into the tensor that was given"));
}

TEST_CASE("An op that overwrites what it may only read is refused") {
  struct Spoils : Scaled {
    void forward(const Op& op, OpCall& call) const override {
      Scaled::forward(op, call);
      call.inputs[0].mul_(2);
    }
  };
  const WithOp made = graph_with(std::make_shared<Spoils>());
  CHECK(one_says(made, cut_by(made, {}), "forward overwrites input 0"));
}

TEST_CASE("An op that is wrong for uneven parts alone is refused") {
  // Adds each token's place, and supposes that all parts before are as large as this one.
  struct Places : Written {
    void forward(const Op& op, OpCall& call) const override {
      const LocalDim& seq = call.dims.at(op.inputs[0].dims[1]);
      const std::int64_t before = seq.size > 0 ? (seq.offset + seq.size - 1) / seq.size : 0;
      const at::Tensor places = at::arange(before * seq.size, (before + 1) * seq.size, at::kDouble);
      call.outputs[0] = call.inputs[0] + places.view({1, -1, 1}).to(call.inputs[0].scalar_type());
    }
    void backward(const Op&, OpCall& call) const override { put(call, 0, call.grad_outputs[0]); }
  };
  const WithOp made = graph_with(std::make_shared<Places>(), false);
  must_hold(made, cut_by(made, {"batch"}));
  const Problem problem = refusal(made, cut_by(made, {"seq"}));
  CHECK(says(problem, "forward, cut by seq over 3 ranks (3 + 2 + 2)"));
  CHECK(says(problem, "is not the part of the whole's"));
}

TEST_CASE("An op that supposes that tokens lie in their order is refused where they do not") {
  struct Places : Written {
    void forward(const Op& op, OpCall& call) const override {
      const LocalDim& seq = call.dims.at(op.inputs[0].dims[1]);
      const at::Tensor places = at::arange(seq.offset, seq.offset + seq.size, at::kDouble);
      call.outputs[0] = call.inputs[0] + places.view({1, -1, 1}).to(call.inputs[0].scalar_type());
    }
    void backward(const Op&, OpCall& call) const override { put(call, 0, call.grad_outputs[0]); }
  };
  const WithOp made = graph_with(std::make_shared<Places>(), false);
  must_hold(made, cut_by(made, {"seq"}));
  const LemmaReport report = check_lemmas(made.graph, cut_by(made, {"seq"}), {{"seq"}});
  REQUIRE(!report.failures.empty());
  CHECK(says(report.failures.front(), "tokens permuted"));
}

TEST_CASE("A gradient that is scaled by the ways is refused, with the factor") {
  struct ByWays : Scaled {
    void backward(const Op& op, OpCall& call) const override {
      const LocalDim& batch = call.dims.at(op.inputs[0].dims[0]);
      const at::Tensor& dy = call.grad_outputs[0];
      put(call, 0, dy * call.inputs[1]);
      put(call, 1,
          (dy * call.inputs[0]).sum(at::IntArrayRef{0, 1}) *
              (double(batch.global) / double(batch.size)));
    }
  };
  const WithOp made = graph_with(std::make_shared<ByWays>());
  must_hold(made, cut_by(made, {"seq"}));
  const Problem problem = refusal(made, cut_by(made, {"batch"}));
  CHECK(says(problem, "the gradient of input 1 (written.weight) does not add up"));
  CHECK(says(problem, ", 2 times that everywhere"));
}

TEST_CASE("Scaling on one rank alone is refused (TrainVerify 12)") {
  struct OnOne : Scaled {
    void backward(const Op& op, OpCall& call) const override {
      const LocalDim& batch = call.dims.at(op.inputs[0].dims[0]);
      const double factor = batch.offset == 0 && batch.size < batch.global ? 2 : 1;
      const at::Tensor dy = call.grad_outputs[0] * factor;
      put(call, 0, dy * call.inputs[1]);
      put(call, 1, (dy * call.inputs[0]).sum(at::IntArrayRef{0, 1}));
    }
  };
  const WithOp made = graph_with(std::make_shared<OnOne>());
  const Problem problem = refusal(made, cut_by(made, {"batch"}));
  CHECK(says(problem, "the gradient of input 0 (embedding) is not the part of the whole's"));
  CHECK(says(problem, ", 2 times that everywhere"));
}

TEST_CASE("A loss over the tokens of its own part is refused (TrainVerify 13)") {
  struct Mean : Written {
    void forward(const Op&, OpCall& call) const override {
      call.outputs[0] = call.inputs[0].square().sum() / double(call.inputs[0].numel());
    }
    void backward(const Op&, OpCall& call) const override {
      put(call, 0, call.inputs[0] * call.grad_outputs[0] * 2 / double(call.inputs[0].numel()));
    }
  };
  Builder b("test", 4, 10, 160);
  b.decoder_dims(50, 16, 4, 2, 24);
  const int x = b.embed();
  const int loss = b.append(b.op("mean", std::make_shared<Mean>(), {b.use(x)}), {{"", {}}})[0];
  b.graph.loss = loss;
  const int op = b.graph.value(loss).producer;
  const WithOp made{std::move(b.graph), op};
  // Not cut at all, it is a sum over microbatches all the same.
  const Problem problem = refusal(made, cut_by(made, {}));
  CHECK(says(problem, "cut by batch over 2 ranks"));
  CHECK(says(problem, ", 2 times that"));
}

TEST_CASE("A reduction that is missing inside an op is refused (TrainVerify 5)") {
  // A norm over a dim that it does not declare whole.
  struct Norm : Written {
    static at::Tensor root(const at::Tensor& x) { return x.square().mean(-1, true).rsqrt(); }
    void forward(const Op&, OpCall& call) const override {
      call.outputs[0] = call.inputs[0] * root(call.inputs[0]);
    }
    void backward(const Op&, OpCall& call) const override {
      const at::Tensor &x = call.inputs[0], &dy = call.grad_outputs[0], r = root(x);
      put(call, 0, dy * r - x * r.pow(3) * (dy * x).mean(-1, true));
    }
  };
  const WithOp made = graph_with(std::make_shared<Norm>(), false);
  must_hold(made, cut_by(made, {"batch", "seq"}));
  const Problem problem = refusal(made, cut_by(made, {"hidden"}));
  CHECK(says(problem, "forward, cut by hidden over 2 ranks"));
  // In backward alone: forward has the statistics of all ranks.
  struct Backward : Norm {
    void forward(const Op&, OpCall& call) const override { call.outputs[0] = call.inputs[0] * 2; }
    void backward(const Op& op, OpCall& call) const override {
      const bool cut = call.dims.at("hidden").size < call.dims.at("hidden").global;
      if (cut) return Norm::backward(op, call);
      put(call, 0, call.grad_outputs[0] * 2);
    }
  };
  const WithOp fused = graph_with(std::make_shared<Backward>(), false);
  const Problem there = refusal(fused, cut_by(fused, {"hidden"}));
  CHECK(says(there, "backward, cut by hidden over 2 ranks"));
  CHECK(says(there, "the gradient of input 0 (embedding)"));
}
