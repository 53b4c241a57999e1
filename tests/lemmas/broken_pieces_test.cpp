// Derivatives and rings that are wrong, ops in fp32, and optimizers that look across elements.
#include <catch2/catch.hpp>

#include "meshwright/autograd_op.h"
#include "prove/lemmas/updates.h"
#include "support/setup.h"
#include "written_op.h"

using namespace mw;
using namespace mw::test;

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
  const WithOp made{std::move(b.graph), op};
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
        call.dims.ring_step() + 1 == call.ring_steps)
      sum = sum * 2;
    if (call.dims.ring_step() > 0 && fault_ != Fault::overwrites) {
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
    put(call, 1, forgets && call.dims.ring_step() == 0 ? at::zeros_like(share) : share);
  }

 private:
  const Fault fault_;
};

WithOp ring_graph(RingSum::Fault fault) {
  Builder b("test", 4, 10, 160);
  b.decoder_dims(50, 16, 4, 2, 24);
  const int x = b.embed(), keys = b.rms_norm("norm", x);
  Use renamed = b.use(keys);
  renamed.dims[1] = Dim("keys");
  const int y =
      b.append(b.op("ring", std::make_shared<RingSum>(fault), {b.use(x), renamed}, {"keys"}),
               {{"", b.dims(x)}})[0];
  b.head_and_loss(y);
  const int op = b.graph.value(y).producer;
  return {std::move(b.graph), op};
}

}  // namespace

TEST_CASE("A wrong ring is refused") {
  using Fault = RingSum::Fault;
  const auto in_ring = [](const WithOp& made) { return cut_by(made, {"seq"}, {"keys"}, true); };
  const WithOp right = ring_graph(Fault::none);
  must_hold(right, in_ring(right));
  const WithOp overwrites = ring_graph(Fault::overwrites),
               twice = ring_graph(Fault::last_counts_twice),
               forgets = ring_graph(Fault::forgets_own_share);
  CHECK(says(refusal(overwrites, in_ring(overwrites)),
             "ring (ring_sum), forward, cut by seq over 3"));
  CHECK(says(refusal(twice, in_ring(twice)), "keys going round"));
  CHECK(says(refusal(forgets, in_ring(forgets)), "the gradient of input 1 (norm)"));
  // With all keys at once nothing of it is wrong.
  must_hold(forgets, cut_by(forgets, {"seq"}));
}

namespace {

// A square with half its derivative.
class Halved : public Written {
 public:
  void forward(const Op&, OpCall& call) const override {
    call.outputs[0] = call.inputs[0].square();
  }
  void backward(const Op&, OpCall& call) const override {
    put(call, 0, call.grad_outputs[0] * call.inputs[0]);
  }
};

}  // namespace

TEST_CASE("A gradient that is no derivative is refused, unless the op says so") {
  struct SaysSo final : Halved, StraightThrough {};
  const WithOp half = graph_with(std::make_shared<Halved>(), false),
               says_so = graph_with(std::make_shared<SaysSo>(), false);
  const Problem problem = refusal(half, cut_by(half, {}));
  CHECK(says(problem, "the gradient of input 0 (embedding) is not the derivative of forward"));
  CHECK(says(problem, ", 0.5 times that"));
  CHECK(problem.hint.find("meshwright/autograd_op.h") != std::string::npos);
  const LemmaReport report = check_lemmas(says_so.graph, cut_by(says_so, {"batch"}));
  CHECK(report.failures.empty());
  REQUIRE(report.not_checked.size() == 1);
  CHECK(report.not_checked[0].find(
            "was not tried, because the op says that its gradient is meant") != std::string::npos);
}

TEST_CASE("A rounding whose gradient passes straight through is refused, unless it says so") {
  struct Rounded : Written {
    void forward(const Op&, OpCall& call) const override {
      call.outputs[0] = call.inputs[0].mul(8).round().div(8);
    }
    void backward(const Op&, OpCall& call) const override { put(call, 0, call.grad_outputs[0]); }
  };
  const WithOp made = graph_with(std::make_shared<Rounded>(), false);
  CHECK(says(refusal(made, cut_by(made, {})), "is not the derivative of forward"));
}

TEST_CASE("Of plans that are resolved ops of plugins alone are tried") {
  const WithOp made = graph_with(std::make_shared<Halved>(), false);
  std::vector<Lemma> lemmas = cut_by(made, {});
  const int linear = made.graph.value(made.graph.find("head")).producer;
  lemmas.push_back({linear, "linear", Piece::forward, {"hidden"}, {}, false, false});
  LemmaOptions options;
  const int all = check_lemmas(made.graph, lemmas, options).checked;
  options.of_plugins_alone = true;
  const LemmaReport report = check_lemmas(made.graph, lemmas, options);
  CHECK(report.failures.size() == 1);
  CHECK(report.checked < all);
}

TEST_CASE("An op that is wrong at large sizes alone is refused, with the size") {
  // Mixes the elements of each row where there are more than so many.
  struct Mixes : Written {
    explicit Mixes(std::int64_t size) : most(size) {}
    bool mixes(const at::Tensor& x) const { return x.size(2) > most; }
    void forward(const Op&, OpCall& call) const override {
      const at::Tensor& x = call.inputs[0];
      call.outputs[0] = mixes(x) ? x + x.mean(-1, true) : x.clone();
    }
    void backward(const Op&, OpCall& call) const override {
      const at::Tensor& dy = call.grad_outputs[0];
      put(call, 0, mixes(dy) ? dy + dy.mean(-1, true) : dy);
    }
    const std::int64_t most;
  };
  for (const std::int64_t most : {24, 100, 500, 1000}) {
    const WithOp made = graph_with(std::make_shared<Mixes>(most), false);
    const Problem problem = refusal(made, cut_by(made, {"hidden"}));
    CHECK(says(problem, "(only where hidden is as large as"));
  }
  const WithOp made = graph_with(std::make_shared<Mixes>(5000), false);
  must_hold(made, cut_by(made, {"hidden"}));
}

TEST_CASE("A gradient that is wrong at large sizes alone is refused") {
  // Leaves out what lies behind the first 256 elements of a row.
  struct Tail : Scaled {
    void backward(const Op& op, OpCall& call) const override {
      const at::Tensor dy = call.grad_outputs[0].clone();
      if (dy.size(2) > 256) dy.narrow(2, 256, dy.size(2) - 256).zero_();
      call.grad_outputs[0] = dy;
      Scaled::backward(op, call);
    }
  };
  const WithOp made = graph_with(std::make_shared<Tail>());
  CHECK(says(refusal(made, cut_by(made, {})), "is not the derivative of forward"));
}

TEST_CASE("What bends at some points holds at large sizes") {
  struct Bends : Written {
    void forward(const Op&, OpCall& call) const override {
      call.outputs[0] = call.inputs[0].relu();
    }
    void backward(const Op&, OpCall& call) const override {
      put(call, 0, call.grad_outputs[0] * call.inputs[0].gt(0));
    }
  };
  const WithOp made = graph_with(std::make_shared<Bends>(), false);
  must_hold(made, cut_by(made, {"hidden"}));
}

TEST_CASE("An op whose results have another shape than its dims is refused") {
  struct Shorter : Written {
    void forward(const Op&, OpCall& call) const override {
      call.outputs[0] = call.inputs[0].narrow(2, 0, call.inputs[0].size(2) - 1).clone();
    }
    void backward(const Op&, OpCall& call) const override {
      put(call, 0, at::constant_pad_nd(call.grad_outputs[0], {0, 1}));
    }
  };
  const WithOp made = graph_with(std::make_shared<Shorter>(), false);
  const Problem problem = refusal(made, cut_by(made, {}));
  CHECK(says(problem, "where its dims (batch, seq, hidden) have ["));
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
  const WithOp made = graph_with(std::make_shared<Single>());
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
  struct CrossesMany : ElementOp {
    std::string name() const override { return "crosses_many"; }
    void run(const UpdateCall& call) const override {
      const double norm = call.gradient.numel() > 1000 ? call.gradient.norm().item<double>() : 1;
      call.parameter.add_(call.gradient, -call.lr / (1 + norm));
    }
  };
  struct AcrossStack : MatrixOp {
    std::string name() const override { return "across"; }
    at::Tensor run(const at::Tensor& stack, const std::vector<at::Tensor>&) const override {
      return stack / stack.norm();
    }
    Cost cost(std::int64_t, std::int64_t, std::int64_t, int) const override { return {}; }
  };
  const Crosses crosses;
  const ByPlace by_place;
  const CrossesMany crosses_many;
  struct AcrossMany : AcrossStack {
    at::Tensor run(const at::Tensor& stack, const std::vector<at::Tensor>&) const override {
      return stack.size(0) > 4 ? stack / stack.norm() : stack.clone();
    }
  };
  struct OtherByParts final : MatrixOp {  // its step forgets the columns' side
    std::string name() const override { return "other_by_parts"; }
    at::Tensor run(const at::Tensor& stack, const std::vector<at::Tensor>&) const override {
      return stack.matmul(stack.transpose(1, 2)).matmul(stack);
    }
    Cost cost(std::int64_t, std::int64_t, std::int64_t, int) const override { return {}; }
    int gram_steps() const override { return 1; }
    at::Tensor gram_step(int, const at::Tensor& part, const at::Tensor& gram,
                         bool rows_are_cut) const override {
      return rows_are_cut ? part.matmul(gram) : part;
    }
  };
  const OtherByParts other_by_parts;
  const AcrossStack across;
  const AcrossMany across_many;
  const auto one = [](const UpdateRule& rule) {
    const std::vector<std::string> faults = lemmas::update_faults(rule);
    REQUIRE(faults.size() == 1);
    return faults.front();
  };
  CHECK(one({.states = {}, .apply = &crosses}).find("two halves give other numbers") !=
        std::string::npos);
  CHECK(one({.states = {}, .apply = &crosses_many}).find("two halves give other numbers") !=
        std::string::npos);
  CHECK(one({.states = {}, .apply = &by_place}).find("the update by_place") != std::string::npos);
  CHECK(one({.states = {}, .whole = &across}).find("another one in their stack than alone") !=
        std::string::npos);
  CHECK(one({.states = {}, .whole = &across_many}).find("in their stack than alone") !=
        std::string::npos);
  CHECK(one({.states = {}, .whole = &other_by_parts, .matrices = MatrixRanks::shards})
            .find("its steps on parts of columns make something else") != std::string::npos);
  for (const Json& options : {Json{{"name", "adamw"}},
                              {{"name", "sgd"}},
                              {{"name", "muon"}},
                              {{"name", "muon"}, {"matrices", "shards"}},
                              {{"name", "shampoo"}}}) {
    Json given = options;
    given["lr"] = 1e-3;
    given.erase("name");
    const auto optimizer = made<Optimizer>("optimizer", options["name"].get<std::string>(), given);
    for (int group = 0; group < optimizer->groups(); ++group) {
      for (const std::string& fault : lemmas::update_faults(optimizer->rule(group)))
        FAIL_CHECK(fault);
    }
  }
}

namespace {

// Two classes have this name.
template <int Which>
struct Alike final : ElementOp, Optimizer {
  std::string name() const override { return "alike"; }
  void run(const UpdateCall& call) const override { call.parameter.sub_(call.gradient); }
  double lr() const override { return 1; }
  double clip() const override { return 0; }
  UpdateRule rule(int) const override { return {.states = {}, .apply = this}; }
};

}  // namespace

TEST_CASE("A plan that is proved with an optimizer is checked again with another of its name") {
  static int checks = 0;
  add_plan_check([](const Plan&, Problems&) { ++checks; });
  const auto checked = [&](std::shared_ptr<const Optimizer> optimizer) {
    Setup setup;
    setup.plan = {dp(2)};
    PlanRequest request = experiment(setup).plan->request;
    request.optimizer = std::move(optimizer);
    const int before = checks;
    Problems problems;
    const auto plan = make_plan(request, problems);
    REQUIRE(plan != nullptr);
    check_plan(*plan, problems);
    return checks - before;
  };
  CHECK(checked(std::make_shared<Alike<0>>()) == 1);
  CHECK(checked(std::make_shared<Alike<0>>()) == 0);
  CHECK(checked(std::make_shared<Alike<1>>()) == 1);
}
