// Pipelines priced: closed forms on devices of their own, shared cores, and where stages meet.
#include <catch2/catch.hpp>

#include "clusters.h"
#include "meshwright/engine/forecast.h"
#include "predict/prediction.h"
#include "setups.h"
#include "support/problems.h"

using namespace mw;
using namespace mw::test;

namespace {

// Equal stages of layers so heavy that embedding, head and transfers do not count.
Setup heavy(const StrategyChoice& stages, int layers, std::int64_t batch) {
  Setup setup = llama({stages}, 1);
  setup.options = {{"layers", layers}, {"hidden", 512}, {"heads", 8}, {"ffn", 2048}, {"vocab", 8}};
  setup.batch = batch;
  setup.sequence = 64;
  return setup;
}

ClusterMachine own_devices() {
  Cluster cluster = round_cluster();
  cluster.node.latency = 1e-9;
  cluster.node.bandwidth = 1e14;
  return {cluster, round_stack()};
}

}  // namespace

TEST_CASE("The bubble of equal stages is the closed form") {
  struct Case {
    std::string schedule;
    int stages, chunks, m;
    double bubble;
  };
  const Case c = GENERATE(values<Case>({{"gpipe", 4, 1, 8, 3.0 / 11},
                                        {"1f1b", 4, 1, 8, 3.0 / 11},
                                        {"1f1b", 2, 1, 16, 1.0 / 17},
                                        {"interleaved", 4, 2, 8, 1.5 / 9.5}}));
  const Setup setup = heavy(pp(c.stages, c.schedule, std::vector<int>(c.stages * c.chunks, 1)),
                            c.stages * c.chunks, c.m);
  const Experiment e = experiment(setup);
  const Prediction p = predict(*e.plan, own_devices());
  INFO(c.schedule << " " << c.stages << " stages " << c.chunks << " chunks " << c.m);
  CHECK(p.bubble_fraction == Approx(c.bubble).epsilon(0.1));
}

TEST_CASE("Stages on shared cores take no less than their work over the cores") {
  const int cores = GENERATE(1, 2, 4), stages = GENERATE(2, 4), threads = GENERATE(0, 1);
  const Setup setup = heavy(pp(stages, "1f1b", std::vector<int>(stages, 1)), stages, 8);
  const Experiment e = experiment(setup);
  Device device = round_device(cores);
  device.all_cores = 0.8;
  const Prediction p = predict(*e.plan, SharedCores(device), threads);
  INFO(cores << " cores, " << stages << " stages, threads " << threads);
  CHECK(p.mfu <= 1);
  CHECK(p.step_seconds >= p.hardware_flops_per_step / p.peak_flops);
  // Left to the program, a rank computes with its share of the cores.
  if (threads == 0 && cores <= stages) {
    CHECK(predict(*e.plan, SharedCores(device), 1).step_seconds == Approx(p.step_seconds));
  }
}

TEST_CASE("No stage goes on to its optimizer before the last has come to the totals") {
  Setup setup = gpt({pp(4, "1f1b", {1, 1, 1, 1})}, 1);
  setup.options["layers"] = 4;
  const Experiment e = experiment(setup);
  const Prediction p = predict(*e.plan, SharedCores(round_device(2)));
  double last_work = 0, first_update = 1e9;
  for (const auto& stage : p.actions) {
    for (const TimedAction& a : stage) {
      if (a.name == "B") last_work = std::max(last_work, a.end);
      if (a.name == "update") first_update = std::min(first_update, a.start);
    }
  }
  REQUIRE(last_work > 0);  // there were backwards
  CHECK(first_update >= last_work);
}

TEST_CASE("What a schedule is told of works follows from their ops") {
  Setup setup = heavy(pp(2, "zb-h1", {1, 3}), 4, 4);
  const Experiment e = experiment(setup);
  const auto times = work_times(e.plan->programs);
  REQUIRE(times.size() == 2);
  // Three layers against one; in a layer of GEMMs the three works cost about the same, attention's
  // backward being all dgrad.
  CHECK(times[1].forward == Approx(3 * times[0].forward).epsilon(0.1));
  CHECK(times[0].wgrad < times[0].dgrad);
  CHECK(times[0].wgrad == Approx(times[0].forward).epsilon(0.35));
}

TEST_CASE("A memory limit holds for all that a stage has, in passing too") {
  const std::string schedule = GENERATE(as<std::string>{}, "zb-h1", "zb-h2", "zbv");
  const int chunks = schedule == "zbv" ? 2 : 1;
  const auto limited = [&](double limit) {
    const std::vector<int> layers(2 * chunks, 1);
    return experiment(
        heavy(pp(2, schedule, layers, static_cast<std::int64_t>(limit)), 2 * chunks, 8));
  };
  const auto activations = [](const Experiment& e) {
    std::int64_t most = 0;
    for (int rank = 0; rank < e.plan->ranks(); ++rank) {
      const auto& memory = predict_rank(*e.plan, rank).memory;
      most = std::max(most, memory[Category::activations]);
    }
    return static_cast<double>(most);
  };
  const double free = activations(limited(0));
  int kept = 0;
  for (const double part : {0.9, 0.75, 0.6}) {
    try {
      CHECK(activations(limited(part * free)) <= part * free);
      ++kept;
    } catch (const Error& error) {
      CHECK(codes(error.problems()) == "schedule.memory plan.memory");
    }
  }
  CHECK(kept > 0);
}

TEST_CASE("A send leaves where it stands in its run, not where the run ends") {
  // After it a backward of ZeRO-2 still waits for the sum of its gradients.
  Setup setup = llama({pp(2, "1f1b", {2, 1}), zero(2, 2, 1, 1, false, 1 << 12)}, 1);
  setup.batch = 8;
  const Experiment e = experiment(setup);
  const Prediction p = predict(*e.plan, round_machine(), 0, /*traced=*/true);
  REQUIRE(p.instructions.size() == 2);
  using Kind = InstructionTime::Kind;
  int sends = 0, before_the_end = 0;
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const Program& program = e.plan->programs[stage];
    const auto& times = p.instructions[stage];
    for (const InstructionTime& sent : times) {
      const Instruction& i = program.segments[sent.segment].code[sent.index];
      if (sent.kind != Kind::transfer || i.move.kind != Move::Kind::send) continue;
      double reached = 0, end = 0;  // what comes before it, and the whole run
      for (const InstructionTime& own : times) {
        if (own.segment != sent.segment || own.microbatch != sent.microbatch) continue;
        if (own.kind != Kind::own && own.kind != Kind::wait) continue;
        end = std::max(end, own.end);
        if (own.index < sent.index) reached = std::max(reached, own.end);
      }
      INFO("stage " << stage << " microbatch " << sent.microbatch);
      CHECK(sent.start == Approx(reached).epsilon(1e-9));
      ++sends;
      before_the_end += sent.start < end;
    }
  }
  CHECK(sends == 8);  // four microbatches, forward and back
  CHECK(before_the_end >= 4);
}
