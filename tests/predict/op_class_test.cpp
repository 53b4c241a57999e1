// Ops of other names, as a plugin may bring them: what their types declare (OpType::op_class)
// decides how they are priced, made again, updated and compared.
#include <algorithm>
#include <catch2/catch.hpp>

#include "check/compare.h"
#include "clusters.h"
#include "predict/calibration.h"
#include "predict/prediction.h"
#include "support/rebuilt_graph.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

// An op that ships, under another name. It says what class it is of, or nothing.
class Renamed final : public OpType {
 public:
  Renamed(std::shared_ptr<const OpType> own, bool declares)
      : own_(std::move(own)), declares_(declares) {}
  std::string kind() const override { return "renamed_" + own_->kind(); }
  OpClass op_class() const override { return declares_ ? own_->op_class() : OpClass::other; }
  OpTraits traits(const Op& op) const override { return own_->traits(op); }
  void forward(const Op& op, OpCall& call) const override { own_->forward(op, call); }
  void backward(const Op& op, OpCall& call) const override { own_->backward(op, call); }
  void dgrad(const Op& op, OpCall& call) const override { own_->dgrad(op, call); }
  void wgrad(const Op& op, OpCall& call) const override { own_->wgrad(op, call); }
  std::vector<StepConstant> constants(const Op& op) const override { return own_->constants(op); }
  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    return own_->cost(op, piece, dims, element);
  }

 private:
  const std::shared_ptr<const OpType> own_;
  const bool declares_;
};

// A model whose every op is renamed.
class RenamedModel final : public Model {
 public:
  RenamedModel(std::shared_ptr<const Model> own, bool declares)
      : own_(std::move(own)), declares_(declares) {}
  std::int64_t vocab() const override { return own_->vocab(); }
  Graph build(std::int64_t batch, std::int64_t sequence,
              std::int64_t tokens_per_step) const override {
    std::map<const OpType*, std::shared_ptr<const OpType>> types;
    return rebuilt(own_->build(batch, sequence, tokens_per_step),
                   [&](const std::shared_ptr<const OpType>& own) {
                     auto& type = types[own.get()];
                     if (type == nullptr) type = std::make_shared<Renamed>(own, declares_);
                     return type;
                   });
  }

 private:
  const std::shared_ptr<const Model> own_;
  const bool declares_;
};

Experiment renamed(const Experiment& of, bool declares) {
  PlanRequest request = of.plan->request;
  request.model = std::make_shared<RenamedModel>(request.model, declares);
  Problems problems;
  Experiment other = of;
  other.plan = make_plan(request, problems);
  problems.throw_if_any();
  return other;
}

Setup small_mix(RecomputePolicy::Kind kind = RecomputePolicy::Kind::none) {
  Setup setup;
  setup.plan = {dp(2), tp(2)};
  setup.precision = Precision::fp32;
  setup.recompute.kind = kind;
  return setup;
}

// Kinds of ops that backward makes again, without what a test has put before their names.
std::set<std::string> made_again(const Plan& plan) {
  std::set<std::string> kinds;
  for (const Segment& segment : plan.programs.front().segments) {
    if (segment.kind != SegmentKind::backward) continue;
    for (const Instruction& i : segment.code) {
      if (i.code != Code::compute || i.op < 0 || i.piece != Piece::forward) continue;
      const std::string kind = plan.graph->ops()[i.op].kind();
      kinds.insert(kind.substr(kind.find("renamed_") == 0 ? 8 : 0));
    }
  }
  return kinds;
}

}  // namespace

TEST_CASE("An op of another name is priced by its class") {
  const Experiment own = experiment(small_mix());
  Stack stack = round_stack();
  stack.loss_forward = 20;
  stack.loss_backward = 10;
  stack.joined_projections = true;
  stack.gradient_sum = 6;
  const ClusterMachine machine(round_cluster(), stack);
  const auto seconds = [&](const Experiment& of) {
    return predict(*of.plan, machine).step_seconds;
  };
  CHECK(seconds(renamed(own, true)) == seconds(own));
  CHECK(seconds(renamed(own, false)) != seconds(own));
  // What a stack says of a class is said of kinds that it does not name.
  stack.ops["norm"].forward = {1e4, 1, 1};
  const ClusterMachine slow(round_cluster(), stack);
  CHECK(predict(*renamed(own, true).plan, slow).step_seconds > 1.1 * seconds(own));
  CHECK(predict(*renamed(own, false).plan, slow).step_seconds == seconds(renamed(own, false)));
}

TEST_CASE("On a calibrated machine a kind that was not measured is priced as its class") {
  const Experiment own = renamed(experiment(small_mix()), true);
  const Program& program = own.plan->programs.front();
  Calibration calibration;
  WorkFit fit;
  fit.samples = 1;
  for (const auto& [name, call] : {std::pair("matrix_product forward", 1.0), {"product", 2.0}}) {
    fit.call = call;
    calibration.work[4][name] = fit;
  }
  const Segment& forward = program.segments.at(program.segment(SegmentKind::forward, 0));
  for (const Instruction& i : forward.code) {
    if (i.code != Code::compute || i.op < 0) continue;
    const OpClass op_class = program.graph->ops()[i.op].op_class();
    const WorkFit* found =
        calibration.fit_of(work_kind(program, i), work_class(program, i), 4, true, {1, 1, 1});
    REQUIRE(found != nullptr);
    CHECK(found->call == (op_class == OpClass::matrix_product ? 1 : 2));
  }
}

TEST_CASE("An op of another name is made again by its class") {
  const Experiment own = experiment(small_mix(RecomputePolicy::Kind::selective));
  CHECK(made_again(*own.plan) == std::set<std::string>{"attention"});
  CHECK(made_again(*renamed(own, true).plan) == made_again(*own.plan));
  CHECK(made_again(*renamed(own, false).plan).empty());
}

TEST_CASE("A weight of a product of another name is a matrix") {
  Setup setup = small_mix();
  setup.optimizer = "muon";
  setup.optimizer_options = {{"lr", 1e-3}};
  const Experiment own = experiment(setup);
  const auto matrices = [](const Experiment& of) {
    const auto& parameters = of.plan->programs.front().parameters;
    return std::ranges::count_if(parameters, [](const auto& p) { return p.rows > 0; });
  };
  CHECK(matrices(own) == 14);  // seven of each layer
  CHECK(matrices(renamed(own, true)) == 14);
  CHECK(matrices(renamed(own, false)) == 0);
}

TEST_CASE("Ops of another name are compared as the ones that ship") {
  Setup setup = small_mix();
  if (GENERATE(false, true)) {
    setup.model = "moe";
    setup.options["experts"] = 4;
    setup.options["top_k"] = 2;
    setup.plan = {dp(2), ep(2)};
  }
  const Experiment own = experiment(setup);
  setup.plan.clear();
  const CompareOutcome same = compare(renamed(experiment(setup), true), renamed(own, true));
  CHECK(same.equal);
  CHECK(same.tensors == compare(experiment(setup), own).tensors);
}
