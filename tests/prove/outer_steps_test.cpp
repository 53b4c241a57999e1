// Faults put into the programs of outer steps, and into the steps between them: each is refused.
#include <algorithm>
#include <catch2/catch.hpp>

#include "prove/proved.h"
#include "support/setup.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace outer_steps {
namespace {

const Json streaming = {{"ways", 2}, {"every", 4}, {"fragments", 2}, {"delay", 1}};

std::shared_ptr<const Plan> plan_with(Json options) {
  Setup setup;
  setup.plan = {strategy("diloco", std::move(options)),
                strategy("zero", {{"ways", 2}, {"stage", 1}})};
  setup.options = {{"layers", 2},   {"hidden", 16}, {"heads", 4},
                   {"kv_heads", 4}, {"ffn", 24},    {"vocab", 31}};
  setup.batch = 8;
  return experiment(setup).plan;
}

using Change = std::function<void(Program&, std::vector<Instruction>&)>;

// The code of the refusal of an outer step that a change has broken; empty: it is proved.
std::string refusal(const Plan& plan, const OuterEvent& event, const Change& change) {
  std::vector<Program> programs = outer_plan(plan, event)->programs;
  change(programs[0], programs[0].segments[0].code);
  Proof proof;
  prove_outer_steps(programs, event, proof);
  return proof.proved() ? "" : proof.refusals.front().code;
}

std::vector<Instruction>::iterator first(std::vector<Instruction>& code, auto which) {
  const auto found = std::ranges::find_if(code, which);
  REQUIRE(found != code.end());
  return found;
}
bool sums(const Instruction& i) {
  return i.serves == Serves::outer_gradients && i.code == Code::start;
}
auto updates(Update update) {
  return [=](const Instruction& i) { return i.update == update; };
}

TEST_CASE("outer steps are proved as they are made") {
  for (const Json& options :
       {Json{{"ways", 2}, {"every", 3}}, Json{{"ways", 1}, {"every", 3}}, streaming}) {
    const auto plan = plan_with(options);
    CHECK(prove_plan(*plan).proved());
    for (const OuterEvent& event : kinds_of_outer_events(*plan->programs[0].outer))
      CHECK(refusal(*plan, event, [](Program&, std::vector<Instruction>&) {}).empty());
  }
}

TEST_CASE("outer steps with a fault are refused") {
  const auto plan = plan_with({{"ways", 2}, {"every", 3}});
  const OuterEvent event = kinds_of_outer_events(*plan->programs[0].outer).front();
  const std::vector<Change> faults = {
      [](Program&, auto& code) { code.erase(first(code, sums)); },
      [](Program&, auto& code) { code.insert(first(code, sums), *first(code, sums)); },
      [](Program& p, auto& code) { first(code, sums)->move.atoms = p.buckets[0].shard_atoms; },
      [](Program&, auto& code) { first(code, sums)->move.reduction = Reduction::max; },
      [](Program&, auto& code) { code.erase(first(code, updates(Update::outer_gradient))); },
      [](Program&, auto& code) { code.erase(first(code, updates(Update::outer_step))); },
      [](Program&, auto& code) {
        std::swap(first(code, updates(Update::outer_gradient))->inputs[0],
                  first(code, updates(Update::outer_gradient))->inputs[1]);
      },
      [](Program& p, auto& code) {
        first(code, updates(Update::outer_step))->saved = {p.buckets[0].flat.states[0]};
      },
      [](Program& p, auto& code) { code.back().release = {p.buckets[0].flat.anchor}; },
      [](Program&, auto& code) { code.pop_back(); },  // the wait of a gather
      [](Program&, auto& code) {
        std::swap(*first(code, sums), *first(code, updates(Update::outer_step)));
      },
  };
  for (std::size_t n = 0; n < faults.size(); ++n) {
    CAPTURE(n);
    CHECK(refusal(*plan, event, faults[n]) == "prove.outer-step");
  }
}

TEST_CASE("steps that send between replicas are refused") {
  std::vector<Program> programs = plan_with({{"ways", 2}, {"every", 3}})->programs;
  for (Segment& segment : programs[0].segments) {
    for (Instruction& i : segment.code)
      if (i.code == Code::start && i.serves == Serves::gradients)
        i.move.atoms = programs[0].replica_atoms();
  }
  REQUIRE_FALSE(prove(programs).proved());
  CHECK(prove(programs).refusals.front().code == "prove.replicas");
}

TEST_CASE("outer steps come in turns, each as often as the others") {
  OuterSteps outer{.every = 6, .fragments = 3, .delay = 5};
  std::vector<int> begun(3), ended(3);
  for (std::int64_t step = 0; step < 60; ++step) {
    for (const OuterEvent& event : outer_events(outer, step)) {
      int& count = (event.begins ? begun : ended)[static_cast<std::size_t>(event.fragment)];
      CHECK(event.begins != event.ends);
      CHECK(event.count == count++);
      CHECK(begun[static_cast<std::size_t>(event.fragment)] -
                ended[static_cast<std::size_t>(event.fragment)] <=
            1);
    }
  }
  CHECK(begun == std::vector<int>{10, 10, 10});
  CHECK(std::ranges::min(ended) == 9);
}

}  // namespace
}  // namespace outer_steps
