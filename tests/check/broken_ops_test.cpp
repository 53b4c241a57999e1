// Ops and optimizers that are wrong in one way each: each is refused by the lemma that it breaks,
// with a message that names the fault.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "check/lemma_updates.h"
#include "check/lemmas.h"
#include "lemma_graphs.h"
#include "meshwright/kernel.h"
#include "meshwright/straight_through.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

using Tensors = std::vector<at::Tensor>;

// An op that a test writes forward and backward of: x and a weight of its last dim -> as x.
class Written : public OpType {
 public:
  explicit Written(bool reads_weight = true) : reads_weight_(reads_weight) {}
  std::string kind() const override { return "written"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits;
    traits.backward_reads_input.assign(op.inputs.size(), true);
    traits.backward_reads_output.assign(op.output_dims.size(), false);
    traits.gradient_passes.assign(op.inputs.size(), false);
    return traits;
  }
  Cost cost(const Op&, Piece, const LocalDims&, int) const override { return {}; }

 protected:
  static void put(OpCall& call, std::size_t i, const at::Tensor& gradient) {
    if (!call.wants[i]) return;
    if (!call.grad_inputs[i].defined()) {
      call.grad_inputs[i] = gradient.clone();
    } else if (call.accumulate[i]) {
      call.grad_inputs[i].add_(gradient);
    } else {
      call.grad_inputs[i].copy_(gradient);
    }
  }

 private:
  const bool reads_weight_;
};

// y = x w, over rows; what a test makes of its gradients.
class Scaled : public Written {
 public:
  void forward(const Op&, OpCall& call) const override {
    call.outputs[0] = call.inputs[0] * call.inputs[1];
  }
  void backward(const Op&, OpCall& call) const override {
    const at::Tensor& dy = call.grad_outputs[0];
    put(call, 0, dy * call.inputs[1]);
    put(call, 1, (dy * call.inputs[0]).sum(at::IntArrayRef{0, 1}));
  }
};

// One op on the tokens' embedding (batch, seq, hidden), with a weight (hidden), and the loss of it.
struct Written1 {
  Graph graph;
  int op = -1;
};
Written1 graph_with(std::shared_ptr<const OpType> type, bool weight = true, Dims whole = {}) {
  Builder b("test", 4, 10, 160);
  b.decoder_dims(50, 16, 4, 2, 24);
  const int x = b.embed();
  std::vector<Use> inputs{b.use(x)};
  if (weight) inputs.push_back(b.use(b.parameter("written.weight", {"hidden"})));
  const int y = b.append(b.op("written", std::move(type), std::move(inputs), std::move(whole)),
                         {{"", b.dims(x)}})[0];
  b.head_and_loss(y);
  const int op = b.graph.value(y).producer;
  return {std::move(b.graph), op};
}

std::vector<Lemma> cut_by(const Written1& made, const std::vector<std::string>& cut,
                          const std::vector<std::string>& follow = {}, bool ring = false) {
  std::vector<Lemma> lemmas;
  const std::string kind = made.graph.ops()[static_cast<std::size_t>(made.op)].kind();
  for (const Piece piece : {Piece::forward, Piece::backward})
    lemmas.push_back({made.op, kind, piece, cut, follow, false, ring});
  return lemmas;
}

// The one failure of the op under these lemmas.
Problem refusal(const Written1& made, const std::vector<Lemma>& lemmas) {
  const LemmaReport report = check_lemmas(made.graph, lemmas);
  for (const Problem& failure : report.failures) {
    CHECK(failure.stage == Stage::plan);
    CHECK(failure.code == "prove.lemma");
    UNSCOPED_INFO(failure.message);
  }
  REQUIRE(!report.failures.empty());
  return report.failures.front();
}
bool says(const Problem& problem, const std::string& text) {
  return problem.message.find(text) != std::string::npos;
}

void must_hold(const Written1& made, const std::vector<Lemma>& lemmas) {
  const LemmaReport report = check_lemmas(made.graph, lemmas);
  for (const Problem& failure : report.failures) FAIL_CHECK(failure.message);
  CHECK(report.checked >= static_cast<int>(lemmas.size()));
}

}  // namespace

TEST_CASE("A right op of a stranger holds") {
  const Written1 made = graph_with(std::make_shared<Scaled>());
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
  const Written1 made = graph_with(std::make_shared<Elsewhere>());
  CHECK(says(refusal(made, cut_by(made, {})), "is not written into the tensor that was given"));
}

TEST_CASE("An op that overwrites what it may only read is refused") {
  struct Spoils : Scaled {
    void forward(const Op& op, OpCall& call) const override {
      Scaled::forward(op, call);
      call.inputs[0].mul_(2);
    }
  };
  const Written1 made = graph_with(std::make_shared<Spoils>());
  CHECK(says(refusal(made, cut_by(made, {})), "forward overwrites input 0"));
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
  const Written1 made = graph_with(std::make_shared<Places>(), false);
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
  const Written1 made = graph_with(std::make_shared<Places>(), false);
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
  const Written1 made = graph_with(std::make_shared<ByWays>());
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
  const Written1 made = graph_with(std::make_shared<OnOne>());
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
  const Written1 made{std::move(b.graph), b.graph.value(loss).producer};
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
  const Written1 made = graph_with(std::make_shared<Norm>(), false);
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
  const Written1 fused = graph_with(std::make_shared<Backward>(), false);
  const Problem there = refusal(fused, cut_by(fused, {"hidden"}));
  CHECK(says(there, "backward, cut by hidden over 2 ranks"));
  CHECK(says(there, "the gradient of input 0 (embedding)"));
}

TEST_CASE("Gradients of two operands that are swapped are refused (TrainVerify 11)") {
  // Turns two vectors, as a rotary embedding does queries and keys.
  struct Turns : Written {
    void forward(const Op&, OpCall& call) const override {
      call.outputs[0] = call.inputs[0] * 2;
      call.outputs[1] = call.inputs[1] * 3;
    }
    void backward(const Op&, OpCall& call) const override {
      put(call, 0, call.grad_outputs[1] * 3);
      put(call, 1, call.grad_outputs[0] * 2);
    }
  };
  Builder b("test", 4, 10, 160);
  b.decoder_dims(50, 16, 4, 2, 24);
  const int x = b.embed(), other = b.rms_norm("norm", x);
  const std::vector<int> both =
      b.append(b.op("turns", std::make_shared<Turns>(), {b.use(x), b.use(other)}),
               {{"turns.q", b.dims(x)}, {"turns.k", b.dims(x)}});
  b.head_and_loss(b.add("sum", both[0], both[1]));
  const int op = b.graph.value(both[0]).producer;
  const Written1 made{std::move(b.graph), op};
  const LemmaReport report = check_lemmas(made.graph, cut_by(made, {}));
  REQUIRE(report.failures.size() >= 2);
  CHECK(says(report.failures[0], "the gradient of input 0 (embedding) is not the derivative"));
}

namespace {

// y (batch, seq, hidden) = x times the sum over all keys: each step of a ring adds its shard's.
class RingSum : public Written {
 public:
  enum class Fault { none, overwrites, last_counts_twice, forgets_own_share };
  explicit RingSum(Fault fault) : fault_(fault) {}
  std::string kind() const override { return "ring_sum"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = Written::traits(op);
    traits.rotates = Dim("keys");
    return traits;
  }
  void forward(const Op&, OpCall& call) const override {
    at::Tensor sum = call.inputs[1].sum(1, true) * call.inputs[0];
    if (fault_ == Fault::last_counts_twice && call.ring_steps > 1 &&
        call.ring_step + 1 == call.ring_steps)
      sum = sum * 2;
    if (call.ring_step > 0 && fault_ != Fault::overwrites) {
      call.outputs[0].add_(sum);
    } else {
      call.outputs[0] = sum;
    }
  }
  void backward(const Op&, OpCall& call) const override {
    const at::Tensor& dy = call.grad_outputs[0];
    put(call, 0, dy * call.inputs[1].sum(1, true));
    const bool forgets = fault_ == Fault::forgets_own_share && call.ring_steps > 1;
    const at::Tensor share = (dy * call.inputs[0]).sum(1, true).expand_as(call.inputs[1]);
    put(call, 1, forgets && call.ring_step == 0 ? at::zeros_like(share) : share);
  }

 private:
  const Fault fault_;
};

Written1 ring_graph(RingSum::Fault fault) {
  Builder b("test", 4, 10, 160);
  b.decoder_dims(50, 16, 4, 2, 24);
  const int x = b.embed(), keys = b.rms_norm("norm", x);
  Use renamed = b.use(keys);
  renamed.dims[1] = Dim("keys");
  const int y =
      b.append(b.op("ring", std::make_shared<RingSum>(fault), {b.use(x), renamed}, {"keys"}),
               {{"", b.dims(x)}})[0];
  b.head_and_loss(y);
  return {std::move(b.graph), b.graph.value(y).producer};
}

}  // namespace

TEST_CASE("A wrong ring is refused") {
  using Fault = RingSum::Fault;
  const auto in_ring = [](const Written1& made) { return cut_by(made, {"seq"}, {"keys"}, true); };
  const Written1 right = ring_graph(Fault::none);
  must_hold(right, in_ring(right));
  const Written1 overwrites = ring_graph(Fault::overwrites),
                 twice = ring_graph(Fault::last_counts_twice),
                 forgets = ring_graph(Fault::forgets_own_share);
  CHECK(says(refusal(overwrites, in_ring(overwrites)),
             "ring (ring_sum), forward, cut by seq over 3"));
  CHECK(says(refusal(twice, in_ring(twice)), "keys going round"));
  CHECK(says(refusal(forgets, in_ring(forgets)), "the gradient of input 1 (norm)"));
  // With all keys at once nothing of it is wrong.
  must_hold(forgets, cut_by(forgets, {"seq"}));
}

TEST_CASE("A gradient that is no derivative is refused, unless the op says so") {
  struct Half : Written {
    void forward(const Op&, OpCall& call) const override {
      call.outputs[0] = call.inputs[0].square();
    }
    void backward(const Op&, OpCall& call) const override {
      put(call, 0, call.grad_outputs[0] * call.inputs[0]);
    }
  };
  struct SaysSo final : Half, StraightThrough {};
  const Written1 half = graph_with(std::make_shared<Half>(), false),
                 says_so = graph_with(std::make_shared<SaysSo>(), false);
  const Problem problem = refusal(half, cut_by(half, {}));
  CHECK(says(problem, "the gradient of input 0 (embedding) is not the derivative of forward"));
  CHECK(says(problem, ", 0.5 times that"));
  CHECK(problem.hint.find("meshwright/straight_through.h") != std::string::npos);
  const LemmaReport report = check_lemmas(says_so.graph, cut_by(says_so, {"batch"}));
  CHECK(report.failures.empty());
  REQUIRE(report.not_checked.size() == 1);
  CHECK(report.not_checked[0].find("meant to be no derivative") != std::string::npos);
}

TEST_CASE("An op in fp32 alone is held to what fp32 has, and the report says so") {
  struct Single : Scaled {
    void forward(const Op&, OpCall& call) const override {
      call.outputs[0] =
          (call.inputs[0].to(at::kFloat) * call.inputs[1].to(at::kFloat)).to(at::kDouble);
    }
    void backward(const Op&, OpCall& call) const override {
      const at::Tensor dy = call.grad_outputs[0].to(at::kFloat);
      put(call, 0, (dy * call.inputs[1].to(at::kFloat)).to(at::kDouble));
      put(call, 1, (dy * call.inputs[0].to(at::kFloat)).sum(at::IntArrayRef{0, 1}).to(at::kDouble));
    }
  };
  const Written1 made = graph_with(std::make_shared<Single>());
  const LemmaReport report = check_lemmas(made.graph, cut_by(made, {"batch"}));
  for (const Problem& failure : report.failures) FAIL_CHECK(failure.message);
  CHECK(!report.not_checked.empty());
}

TEST_CASE("Optimizers that look across elements or matrices are refused") {
  struct Crosses : ElementOp {
    std::string name() const override { return "crosses"; }
    void run(const UpdateCall& call) const override {
      call.parameter.add_(call.gradient, -call.lr / (1 + call.gradient.norm().item<double>()));
    }
  };
  struct ByPlace : ElementOp {
    std::string name() const override { return "by_place"; }
    void run(const UpdateCall& call) const override {
      call.parameter.addcmul_(call.gradient,
                              at::arange(call.gradient.numel(), call.gradient.options()));
    }
  };
  struct AcrossStack : MatrixOp {
    std::string name() const override { return "across"; }
    at::Tensor run(const at::Tensor& stack) const override { return stack / stack.norm(); }
    Cost cost(std::int64_t, std::int64_t, std::int64_t, int) const override { return {}; }
  };
  const Crosses crosses;
  const ByPlace by_place;
  const AcrossStack across;
  const auto one = [](const UpdateRule& rule) {
    const std::vector<std::string> faults = lemmas::update_faults(rule);
    REQUIRE(faults.size() == 1);
    return faults.front();
  };
  CHECK(one({.states = {}, .apply = &crosses}).find("two halves give other numbers") !=
        std::string::npos);
  CHECK(one({.states = {}, .apply = &by_place}).find("the update by_place") != std::string::npos);
  CHECK(one({.states = {}, .whole = &across}).find("another one in their stack than alone") !=
        std::string::npos);
  for (const char* name : {"adamw", "sgd", "muon"}) {
    const auto optimizer = made<Optimizer>("optimizer", name, {{"lr", 1e-3}});
    for (const bool matrices : {false, true}) {
      if (matrices && !optimizer->takes_matrices()) continue;
      for (const std::string& fault : lemmas::update_faults(optimizer->rule(matrices)))
        FAIL_CHECK(fault);
    }
  }
}
