// Transfers that cross the edges of a step: gathers of updated parameters beside the next step's
// forward, and sums of shards over replicas beside the last backward.
#include <catch2/catch.hpp>
#include <functional>

#include "predict/pipeline.h"
#include "predict/prediction.h"
#include "search_setups.h"

using namespace mw;
using namespace mw::test;

namespace {

StrategyChoice gathers_at_end(int ways, int stage) {
  return strategy("zero", {{"ways", ways}, {"stage", stage}, {"overlap_gather", false}});
}

Setup wide(std::vector<StrategyChoice> plan, std::int64_t microbatch) {
  Setup setup = small();
  setup.options["hidden"] = 1024;
  setup.options["ffn"] = 2816;
  setup.batch = 128;
  setup.plan = std::move(plan);
  setup.microbatch = microbatch;
  return setup;
}

PipelineTime priced(const Plan& plan, const ClusterMachine& machine, bool traced = false) {
  std::vector<RankView> ranks;
  for (const Program& program : plan.programs)
    ranks.emplace_back(program, program.first(), 0, machine.scratch());
  return price_pipeline(ranks, machine, 0, traced);
}

double seconds(const Setup& setup) {
  return priced(*experiment(setup).plan, two_nodes()).step;
}

}  // namespace

TEST_CASE("ZeRO-1 takes no longer than dp, as the next forward hides its gathers") {
  const double dp_step = seconds(wide({dp(8, 1 << 22)}, 16));
  for (const int stage : {1, 2}) {
    const double ahead = seconds(wide({zero(8, stage, 1, 1, false, 1 << 22)}, 16));
    const double at_end = seconds(wide({gathers_at_end(8, stage)}, 16));
    CHECK(ahead < 1.01 * dp_step);
    CHECK(ahead < 0.99 * at_end);
  }
}

TEST_CASE("The step that is priced pays for the gathers of the step before, and no others") {
  const ClusterMachine machine = two_nodes();
  for (const bool staged : {false, true}) {
    std::vector<StrategyChoice> plan = {zero(4, 1, 1, 1, false, 1 << 22)};
    if (staged) plan.insert(plan.begin(), pp(2, "1f1b", {4, 4}));
    Setup setup = wide(plan, 4);
    const Experiment e = experiment(setup);
    const PipelineTime time = priced(*e.plan, machine, true);
    for (const TimedAction& action : time.actions.front()) {
      CHECK(action.start >= 0);
      CHECK(action.end <= time.step * (1 + 1e-9));
    }
    // Links carry the gathers once in a step, and forward hides nearly all of them.
    const CommunicationKey key{"zero", "all-gather", "parameters"};
    const TransferTime gathers = time.stages.front().transfers.at(key);
    double carried = 0;
    for (const InstructionTime& one : time.instructions.front()) {
      const Instruction& i = e.plan->programs[0].segments[one.segment].code[one.index];
      if (one.kind == InstructionTime::Kind::transfer && i.phase == std::string("parameters"))
        carried += one.end - one.start;
    }
    CHECK(carried == Approx(gathers.seconds).epsilon(1e-6));
    CHECK(gathers.exposed < 0.1 * gathers.seconds);
  }
}

TEST_CASE("HSDP takes less than flat ZeRO-3 where the link between nodes is slow") {
  Cluster cluster = two_nodes().cluster();
  cluster.network.nic = 1e9;
  const ClusterMachine machine(cluster, round_stack());
  const PipelineTime flat = priced(*experiment(wide({zero(8, 3)}, 2)).plan, machine);
  const PipelineTime in_nodes = priced(*experiment(wide({zero(8, 3, 2)}, 2)).plan, machine);
  CHECK(in_nodes.step < 0.8 * flat.step);
  // What is left to wait for is the last layers' sum.
  const TransferTime sums =
      in_nodes.stages.front().transfers.at({"zero.0", "all-reduce", "gradients"});
  CHECK(sums.exposed < 0.8 * sums.seconds);
}

TEST_CASE("Sums of shards over replicas begin in the last backward, each as soon as it can") {
  for (const int stage : {2, 3}) {
    const Experiment e = experiment(wide({zero(8, stage, 2, 1, false, 1 << 22)}, 8));
    const Program& program = e.plan->programs.front();
    int in_backward = 0, at_end = 0;
    for (std::size_t r = 0; r < program.timeline.size(); ++r) {
      const Segment& segment = program.segments[program.timeline[r].segment];
      for (const Instruction& i : segment.code) {
        if (i.code != Code::start || i.bucket < 0 ||
            i.pending != program.buckets[i.bucket].flat.shard_reduction)
          continue;
        if (segment.kind == SegmentKind::finish) {
          ++at_end;
        } else {
          ++in_backward;
          CHECK(segment.kind == SegmentKind::backward);
          CHECK(program.timeline[r].microbatch == program.microbatches - 1);
        }
      }
    }
    INFO("stage " << stage);
    CHECK(in_backward > 0);
    CHECK(at_end == 0);
    CHECK(in_backward + at_end == static_cast<int>(program.buckets.size()));
  }
}

TEST_CASE("A step of a parted backward is shorter where tp's all-reduces hide") {
  Setup setup = small();
  setup.microbatch = 2;
  setup.plan = {pp(2, "zb-h1", {4, 4}), tp(4)};
  const double exposed = seconds(setup);
  setup.plan.back() = tp(4, true);
  CHECK(seconds(setup) < 0.97 * exposed);
}
