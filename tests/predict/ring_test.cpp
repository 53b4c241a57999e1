// A ring of steps is one instruction: what is predicted of it is what its steps take, written out
// one by one.
#include <catch2/catch.hpp>

#include <utility>

#include "clusters.h"
#include "meshwright/engine/forecast.h"
#include "meshwright/engine/program_facts.h"
#include "predict/price.h"
#include "predict/step_counts.h"
#include "setups.h"

using namespace mw;
using namespace mw::test;

namespace {

Program written_out(const Program& program) {
  Program steps = program;
  for (Segment& segment : steps.segments) {
    std::vector<Instruction> code;
    for (const Instruction& i : segment.code) {
      if (!i.ring) {
        code.push_back(i);
        continue;
      }
      const std::vector<Instruction> all = ring_steps(program, i);
      CHECK(all.size() == ring_length(program, i));
      code.insert(code.end(), all.begin(), all.end());
    }
    segment.code = std::move(code);
  }
  return steps;
}

std::size_t rings(const Program& program) {
  std::size_t count = 0;
  for (const Segment& segment : program.segments) {
    for (const Instruction& i : segment.code) count += i.ring ? 1 : 0;
  }
  return count;
}

void same_time(const StepTime& a, const StepTime& b) {
  CHECK(a.step == Approx(b.step).epsilon(1e-12));
  CHECK(a.compute == Approx(b.compute).epsilon(1e-12));
  CHECK(a.exposed == Approx(b.exposed).epsilon(1e-12));
  CHECK(a.executed == Approx(b.executed).epsilon(1e-12));
  REQUIRE(a.transfers.size() == b.transfers.size());
  for (const auto& [key, transfer] : a.transfers) {
    CHECK(transfer.seconds == Approx(b.transfers.at(key).seconds).epsilon(1e-12));
    CHECK(transfer.exposed == Approx(b.transfers.at(key).exposed).epsilon(1e-12).margin(1e-15));
  }
}

void hold_to_its_steps(const Setup& setup) {
  const Experiment e = experiment(setup);
  for (const Program& program : e.plan->programs) {
    CHECK(rings(program) > 0);
    const Program steps = written_out(program);
    CHECK(count_flops({program}).model == Approx(count_flops({steps}).model).epsilon(1e-14));
    for (const RankClass& kind : rank_classes(program)) {
      const RankView rank(program, kind.at), each(steps, kind.at);
      CHECK(forecast_memory(rank).bytes == forecast_memory(each).bytes);
      CHECK(forecast_memory(rank).peak == forecast_memory(each).peak);
      const Traffic sent = forecast_traffic(rank), expected = forecast_traffic(each);
      REQUIRE(sent.size() == expected.size());
      for (const auto& [key, use] : sent) {
        CHECK(use.calls == expected.at(key).calls);
        CHECK(use.bytes == expected.at(key).bytes);
      }
      const SharedCores cores(round_device());
      same_time(price_step(rank, cores), price_step(each, cores));
      const ClusterMachine cluster = round_machine();
      same_time(price_step(rank, cluster), price_step(each, cluster));
    }
  }
}

}  // namespace

TEST_CASE("A ring of any length takes what its steps take") {
  for (int ways = 2; ways <= 9; ++ways) {
    for (const std::int64_t sequence : {8 * ways, 8 * ways + 3}) {
      CAPTURE(ways, sequence);
      Setup setup = llama({sp(ways, "ring")}, 2);
      setup.sequence = sequence;
      hold_to_its_steps(setup);
    }
  }
}

TEST_CASE("So does one that is computed again, beside gathers that are under way, or on a stage") {
  Setup setup = llama({sp(6, "ring"), zero(2, 3)}, 2);
  setup.sequence = 48;
  hold_to_its_steps(setup);
  setup.recompute.kind = RecomputePolicy::Kind::full;
  hold_to_its_steps(setup);
  Setup stages = llama({pp(3, "zb-h1", {1, 1, 1}), sp(6, "ring")}, 2);
  stages.sequence = 48;
  hold_to_its_steps(stages);
}

TEST_CASE("A plan's instructions do not grow with the ranks of a ring") {
  const auto length = [](int ways) {
    Setup setup = llama({sp(ways, "ring")});
    setup.sequence = 4096;
    const Experiment e = experiment(setup);
    const Program& program = e.plan->programs.front();
    std::size_t all = program.slots.size();
    for (const Segment& segment : program.segments) all += segment.code.size();
    return all;
  };
  CHECK(length(1024) == length(8));
}
