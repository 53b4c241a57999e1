// Where a program gathers, lets go and reduces what is sharded: the same numbers would come
// out of worse orders, so they are looked at one by one. And the bytes, by closed forms.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "meshwright/engine/forecast.h"
#include "support/setup.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;

namespace {

Setup layers(std::vector<StrategyChoice> plan, std::int64_t microbatch = 0) {
  Setup setup;
  setup.options = {{"layers", 6},   {"hidden", 32}, {"heads", 4},
                   {"kv_heads", 4}, {"ffn", 48},    {"vocab", 64}};
  setup.batch = 8;
  setup.microbatch = microbatch;
  setup.plan = std::move(plan);
  setup.precision = Precision::fp32;
  return setup;
}

// Runs `each` over the instructions of a step, in order.
template <class Each>
void walk(const Program& program, Each&& each) {
  for (const SegmentRun& run : program.timeline) {
    for (const Instruction& i : program.segments[run.segment].code) each(i, run);
  }
}

}  // namespace

TEST_CASE("Layers are gathered ahead, and let go before the next are begun") {
  const int prefetch = GENERATE(0, 1, 2, 100);
  const Experiment e = experiment(layers({zero(2, 3, 1, prefetch)}));
  const Program& program = e.plan->programs.front();
  std::map<int, int> bucket_of;  // parameter slots
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    for (int p : program.buckets[b].parameters) {
      bucket_of[program.parameters[p].slot] = static_cast<int>(b);
    }
  }
  std::set<int> begun, there;
  std::size_t most = 0;
  int waits_behind_work = 0, gathers = 0;
  std::map<int, bool> overlapped;
  const auto is_gather = [&](const Instruction& i) {
    return i.bucket >= 0 && i.pending >= 0 && i.pending == program.buckets[i.bucket].flat.gather;
  };
  walk(program, [&](const Instruction& i, const SegmentRun& run) {
    const SegmentKind kind = program.segments[run.segment].kind;
    if (kind == SegmentKind::finish) return;
    if (is_gather(i) && i.code == Code::start) {
      CHECK(begun.insert(i.bucket).second);
      overlapped[i.bucket] = false;
      ++gathers;
    } else if (is_gather(i)) {
      CHECK(begun.count(i.bucket) == 1);
      there.insert(i.bucket);
      if (overlapped[i.bucket]) ++waits_behind_work;
    } else if (i.code == Code::compute) {
      for (auto& [bucket, over] : overlapped) over = true;
      for (int slot : i.inputs) {
        const auto found = bucket_of.find(slot);
        if (found != bucket_of.end()) CHECK(there.count(found->second) == 1);
      }
    }
    for (int slot : i.release) {
      const int bucket = program.slots[slot].bucket;
      if (bucket < 0 || slot != program.buckets[bucket].flat.parameters) continue;
      begun.erase(bucket);
      CHECK(there.erase(bucket) == 1);
    }
    most = std::max(most, begun.size());
  });
  CHECK(begun.empty());
  CHECK(gathers >= 14);  // 6 layers and the ends, forward and backward
  CHECK(most ==
        std::min<std::size_t>(static_cast<std::size_t>(prefetch) + 1, program.buckets.size()));
  // All but the first of each pass are fetched while another computes.
  if (prefetch > 0) CHECK(waits_behind_work >= gathers - 2);
  if (prefetch == 0) CHECK(waits_behind_work == 0);
}

TEST_CASE("All that a layer needs is gathered a layer ahead, however its parameters lie") {
  const bool sequence = GENERATE(false, true);
  std::vector<StrategyChoice> plan = {zero(2, 3), tp(2)};
  if (sequence) plan.push_back(sp());
  const Experiment e = experiment(layers(plan, 2));
  const Program& program = e.plan->programs.front();
  const Graph& graph = *program.graph;
  std::map<int, std::set<int>> buckets;  // of each layer
  std::map<int, int> layer_of;           // of buckets
  for (const Op& op : graph.ops()) {
    for (std::size_t b = 0; b < program.buckets.size(); ++b) {
      for (const int p : program.buckets[b].parameters) {
        const auto uses = [&](const Use& use) { return use.value == program.parameters[p].value; };
        if (std::none_of(op.inputs.begin(), op.inputs.end(), uses)) continue;
        buckets[op.layer].insert(static_cast<int>(b));
        layer_of[static_cast<int>(b)] = op.layer;
      }
    }
  }
  CHECK(buckets[2].size() == 2);  // norms lie whole on tp's ranks, matrices do not
  for (const Segment& segment : program.segments) {
    if (segment.kind != SegmentKind::forward && segment.kind != SegmentKind::backward) continue;
    INFO(segment.name);
    std::map<int, int> begun;   // buckets, and after how many ops
    std::vector<int> computed;  // layers, in order
    std::map<int, int> first;   // after how many ops
    int ops = 0;
    for (const Instruction& i : segment.code) {
      if (i.bucket >= 0 && i.code == Code::start &&
          i.pending == program.buckets[i.bucket].flat.gather)
        begun.emplace(i.bucket, ops);
      if (i.code != Code::compute || i.op < 0) continue;
      const int layer = graph.ops()[i.op].layer;
      if (layer >= 0 && layer < graph.layers && first.emplace(layer, ops).second)
        computed.push_back(layer);
      ++ops;
    }
    REQUIRE(computed.size() == 6);
    for (std::size_t n = 1; n < computed.size(); ++n) {
      for (const int bucket : buckets[computed[n]])
        CHECK(begun.at(bucket) <= first[computed[n - 1]]);
    }
  }
}

TEST_CASE("A sharded bucket is reduced once for each microbatch, whatever the schedule") {
  const int stage = GENERATE(2, 3);
  const std::string schedule = GENERATE(as<std::string>{}, "none", "1f1b", "zb-h1", "zbv");
  std::vector<StrategyChoice> plan = {zero(2, stage, 1, 1, false, 1 << 20)};
  const bool v = schedule == "zbv";
  if (schedule != "none") {
    plan.insert(plan.begin(), pp(2, schedule, v ? std::vector{1, 2, 2, 1} : std::vector{3, 3}));
  }
  const Experiment e = experiment(layers(plan, 1));
  for (const Program& program : e.plan->programs) {
    std::map<std::pair<int, int>, int> begun, awaited;  // bucket, microbatch
    std::set<int> open;
    std::size_t most = 0;
    walk(program, [&](const Instruction& i, const SegmentRun& run) {
      const bool reduces =
          i.bucket >= 0 && i.pending == program.buckets[i.bucket].flat.reduction && i.pending >= 0;
      if (reduces && i.code == Code::start) {
        ++begun[{i.bucket, run.microbatch}];
        open.insert(i.bucket);
      }
      if (reduces && i.code == Code::wait) {
        ++awaited[{i.bucket, run.microbatch}];
        open.erase(i.bucket);
      }
      most = std::max(most, open.size());
    });
    INFO("stage " << program.stage << " of " << schedule);
    CHECK(begun.size() == program.buckets.size() * static_cast<std::size_t>(e.plan->microbatches));
    for (const auto& [key, times] : begun) CHECK(times == 1);
    CHECK(begun == awaited);
    CHECK(most <= 2);
  }
}

TEST_CASE("Bytes of a step: dp and stages 1 and 2 two of all parameters, stage 3 three") {
  const int ways = GENERATE(2, 4, 8), stage = GENERATE(0, 1, 2, 3);
  Setup setup = layers({stage == 0 ? dp(ways) : zero(ways, stage)});
  const Experiment e = experiment(setup);
  std::int64_t measured = 0;
  train(e, nullptr, [&](const StepReport& report) {
    measured = 0;
    for (const auto& [key, use] : report.ranks.front().communication) {
      if (key.phase != "report") measured += use.bytes;
    }
  });
  const auto parameters = static_cast<double>(e.plan->graph->parameter_count());
  const double share = 4.0 * parameters * (ways - 1) / ways;
  // The embedding's weight is not needed for backward, so stage 3 gathers it once.
  const double embedding = 4.0 * 64 * 32 * (ways - 1) / ways;
  const double wanted = stage == 3 ? 3 * share - embedding : 2 * share;
  CHECK(static_cast<double>(measured) == Approx(wanted).epsilon(0.005));
}
