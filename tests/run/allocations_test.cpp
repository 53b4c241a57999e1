// What the engine itself takes from the heap in a step: nothing for an instruction. The ops here
// hand their operand on and allocate nothing, so that what a longer chain of them takes more is the
// engine's.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <new>
#include <vector>

#include "meshwright/builder.h"
#include "meshwright/model.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {
thread_local std::int64_t taken = 0;  // by this thread
}

void* operator new(std::size_t bytes) {
  ++taken;
  if (void* block = std::malloc(bytes)) return block;
  throw std::bad_alloc();
}
// Not left to the library, whose own would be a sanitizer's and not go with the delete below.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++taken;
  return std::malloc(bytes);
}
void operator delete(void* block) noexcept {
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept {
  std::free(block);
}

namespace {

class HandsOn final : public OpType {
 public:
  std::string kind() const override { return "hands_on"; }
  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {true};
    traits.backward_reads_output = {true};
    return traits;
  }
  void forward(const Op&, OpCall& call) const override { call.outputs[0] = call.inputs[0]; }
  void backward(const Op&, OpCall& call) const override {
    call.grad_inputs[0] = call.grad_outputs[0];
  }
  Cost cost(const Op&, Piece, const LocalDims&, int) const override { return {}; }
};

class Chain final : public Model {
 public:
  explicit Chain(int length) : length_(length) { set_name("chain"); }
  std::int64_t vocab() const override { return 50; }
  Graph build(std::int64_t batch, std::int64_t sequence, std::int64_t tokens) const override {
    static const auto type = std::make_shared<const HandsOn>();
    Builder b("chain", batch, sequence, tokens);
    b.decoder_dims(50, 16, 4, 4, 16);
    int x = b.embed();
    for (int k = 0; k < length_; ++k) {
      const std::vector<Graph::Output> outputs{{"", b.dims(x)}};
      x = b.append(b.op("hand." + std::to_string(k), type, {b.use(x)}), outputs)[0];
    }
    b.head_and_loss(x);
    return std::move(b.graph);
  }

 private:
  const int length_;
};

class Counts : public RunObserver {
 public:
  void begin(RankRun& rank) override { before_of(rank) = taken; }
  void step(RankRun& rank, StepEnd&) override {
    std::int64_t& before = before_of(rank);
    of_steps(rank).push_back(taken - before);
    before = taken;
  }
  // The first two steps do not count. A number that is written with a digit more can take a block
  // more, so the least of several steps is what instructions take.
  std::int64_t least(int rank) const {
    const std::vector<std::int64_t>& steps = steps_.at(static_cast<std::size_t>(rank));
    return *std::min_element(steps.begin() + 2, steps.end());
  }

 private:
  std::int64_t& before_of(const RankRun& rank) {
    return before_.at(static_cast<std::size_t>(rank.rank()));
  }
  std::vector<std::int64_t>& of_steps(const RankRun& rank) {
    return steps_.at(static_cast<std::size_t>(rank.rank()));
  }
  std::vector<std::int64_t> before_ = std::vector<std::int64_t>(8);
  std::vector<std::vector<std::int64_t>> steps_ = std::vector<std::vector<std::int64_t>>(8);
};

// Blocks that the first rank's thread takes in a step of a chain, once it has run a few.
std::int64_t taken_by(int length, const std::vector<StrategyChoice>& plan,
                      std::int64_t microbatch = 0) {
  Setup setup;
  setup.plan = plan;
  setup.microbatch = microbatch;
  Experiment e = experiment(setup);
  PlanRequest request = e.plan->request;
  request.model = std::make_shared<Chain>(length);
  Problems problems;
  e.plan = make_plan(request, problems);
  problems.throw_if_any();
  e.steps = 8;
  Counts counts;
  RunObserver* observers[] = {&counts};
  mw::train(e, observers, nullptr);
  return counts.least(0);
}

}  // namespace

// A chain that is longer by 30 ops has at least 60 instructions more for each microbatch. What
// ranks take for a collective depends on which of them comes last, so that steps of several ranks
// differ by a few blocks.
TEST_CASE("No instruction takes a block of the heap") {
  CHECK(taken_by(40, {}) == taken_by(10, {}));
  CHECK(taken_by(40, {}, 3) == taken_by(10, {}, 3));
  CHECK(std::abs(taken_by(40, {dp(2)}, 3) - taken_by(10, {dp(2)}, 3)) < 60);
  CHECK(std::abs(taken_by(40, {tp(2)}) - taken_by(10, {tp(2)})) < 30);
}
