// Predicted memory of programs that are small enough to count by hand.
#include <catch2/catch.hpp>

#include "meshwright/engine/forecast.h"
#include "predict/prediction.h"
#include "setups.h"

using namespace mw;
using namespace mw::test;

namespace {

// An op that needs `workspace` bytes while it runs.
class Needy final : public OpType {
 public:
  explicit Needy(std::int64_t workspace) : workspace_(workspace) {}
  std::string kind() const override { return "needy"; }
  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = traits.backward_reads_output = {false};
    return traits;
  }
  void forward(const Op&, OpCall&) const override {}
  Cost cost(const Op&, Piece, const LocalDims&, int) const override {
    Cost cost;
    cost.workspace = workspace_;
    return cost;
  }

 private:
  std::int64_t workspace_;
};

// A program written by hand: values of 100 fp32 elements, ops one after the other.
struct Hand {
  explicit Hand(const std::vector<std::int64_t>& workspaces, int microbatches = 1) {
    auto graph = std::make_shared<Graph>();
    graph->set_dim("x", 100);
    graph->set_dim("batch", 1);
    graph->set_dim("seq", 1);
    const Init init{Init::Kind::zeros, 0};
    int value = graph->add_parameter("w", {"x"}, init, {});
    for (std::int64_t workspace : workspaces) {
      Op op;
      op.type = std::make_shared<Needy>(workspace);
      op.name = "op";
      op.inputs = {{value, {"x"}, false}};
      value = graph->add(std::move(op), {{"", {"x"}}})[0];
    }
    program.graph = graph;
    program.microbatches = microbatches;
    program.cut.resize(workspaces.size());
    program.follow.resize(workspaces.size());
    Slot loss;
    loss.dtype = Dtype::fp64;
    loss.persistent = true;
    program.slots.push_back(loss);
    program.loss = 0;
    program.segments.push_back({"forward", {}});
    program.segments.push_back({"backward", {}});
    for (int m = 0; m < microbatches; ++m) {
      program.timeline.push_back({0, m});
      program.timeline.push_back({1, m});
    }
  }

  int slot(int alias_of = -1) {
    Slot s;
    s.dims = {"x"};
    s.alias_of = alias_of;
    program.slots.push_back(s);
    return static_cast<int>(program.slots.size()) - 1;
  }
  Instruction& run(int op, const std::vector<int>& inputs, int output,
                   const std::vector<int>& release, int segment = 0) {
    Instruction i;
    i.op = op;
    i.inputs = inputs;
    i.outputs = {output};
    i.release = release;
    program.segments[segment].code.push_back(std::move(i));
    return program.segments[segment].code.back();
  }
  MemoryForecast forecast() const { return forecast_memory(RankView(program, {})); }

  Program program;
};

}  // namespace

TEST_CASE("Activations are what lives at once, and kernels' scratch is on top") {
  Hand hand({1000, 50, 5000});
  const int a = hand.slot(), b = hand.slot(), c = hand.slot();
  hand.run(0, {}, a, {});       // a: 400, and 1000
  hand.run(1, {a}, b, {a});     // a b: 800, and 50; a goes
  hand.run(2, {b}, c, {b, c});  // b c: 800, and 5000
  const MemoryForecast all = hand.forecast();
  CHECK(all[Category::activations] == 800);
  CHECK(all[Category::scratch] == 5000);
  CHECK(all[Category::buffers] == 8);  // the loss
  CHECK(all.peak == 5808);
  CHECK(all.peak_without_scratch == 808);
}

TEST_CASE("What is overwritten in place is not allocated") {
  Hand hand({0, 0});
  const int a = hand.slot(), b = hand.slot(a);
  hand.run(0, {}, a, {});
  Instruction& second = hand.run(1, {a}, b, {a});
  CHECK(hand.forecast()[Category::activations] == 800);  // not granted: two tensors
  second.in_place = true;
  CHECK(hand.forecast()[Category::activations] == 400);
  // The storage lives until its last user is released.
  const int c = hand.slot();
  hand.run(0, {b}, c, {b, c});
  CHECK(hand.forecast()[Category::activations] == 800);
}

TEST_CASE("A slot that nobody releases adds up over microbatches") {
  Hand one({0}), three({0}, 3);
  for (Hand* hand : {&one, &three}) hand->run(0, {}, hand->slot(), {});
  CHECK(one.forecast()[Category::activations] == 400);
  CHECK(three.forecast()[Category::activations] == 1200);
}

TEST_CASE("A backward that releases makes microbatches follow each other in the same memory") {
  Hand three({0, 0}, 3);
  const int a = three.slot(), b = three.slot();
  three.run(0, {}, a, {});
  three.run(1, {a}, b, {a, b}, 1);
  CHECK(three.forecast()[Category::activations] == 800);
}

TEST_CASE("States: every rank holds its part of the parameters, their gradients and Adam's two") {
  const Experiment whole = experiment(llama({}));
  const MemoryForecast one = predict_rank(*whole.plan, 0).memory;
  const std::int64_t bytes = 4 * whole.plan->graph->parameter_count();
  CHECK(one[Category::parameters] == bytes);
  CHECK(one[Category::gradients] == bytes);
  CHECK(one[Category::optimizer] == 2 * bytes);

  // dp holds all of it; tp cuts all but the 7 norms of 64 weights.
  const Experiment data = experiment(llama({dp(4)}));
  CHECK(predict_rank(*data.plan, 3).memory[Category::optimizer] == 2 * bytes);
  const Experiment cut = experiment(llama({dp(2), tp(4)}));
  const std::int64_t norms = 4 * 7 * 64;
  CHECK(predict_rank(*cut.plan, 5).memory[Category::gradients] == norms + (bytes - norms) / 4);
}

TEST_CASE("An uneven cut gives the first ranks more") {
  Setup setup = llama({tp(4)});
  setup.options["vocab"] = 130;  // 33 33 32 32
  const Experiment e = experiment(setup);
  auto parameters = [&](int rank) {
    return predict_rank(*e.plan, rank).memory[Category::parameters];
  };
  CHECK(parameters(0) == parameters(1));
  CHECK(parameters(1) - parameters(2) == 2 * 64 * 4);  // a row of the embedding and of the head
  CHECK(rank_classes(e.plan->programs.front()).size() == 2);
  CHECK(rank_classes(e.plan->programs.front())[0].ranks == 2);
}

TEST_CASE("More ways leave fewer activation bytes to each rank") {
  std::int64_t before = std::numeric_limits<std::int64_t>::max();
  for (int ways : {1, 2, 4}) {
    const Experiment e = experiment(llama({tp(ways)}));
    const std::int64_t now = predict_rank(*e.plan, 0).memory[Category::activations];
    CHECK(now < before);
    before = now;
  }
  before = std::numeric_limits<std::int64_t>::max();
  for (int ways : {1, 2, 4, 8}) {
    const Experiment e = experiment(llama({dp(ways)}));
    const std::int64_t now = predict_rank(*e.plan, 0).memory[Category::activations];
    CHECK(now < before);
    before = now;
  }
  const Experiment all = experiment(gpt({dp(2)})), small = experiment(gpt({dp(2)}, 1));
  CHECK(predict_rank(*small.plan, 0).memory[Category::activations] <
        predict_rank(*all.plan, 0).memory[Category::activations]);
}
