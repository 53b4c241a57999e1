// Weaves on one stage: what they may say, and what holds whatever they say.
#include "meshwright/weave.h"

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "meshwright/schedule.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

using Order = std::function<std::vector<int>(const WeaveRequest&)>;

class Says : public Weave {
 public:
  explicit Says(Order order) : order_(std::move(order)) { set_name("says"); }
  std::vector<int> order(const WeaveRequest& request) const override { return order_(request); }

 private:
  Order order_;
};

// One stage with these works, woven so.
StrategyChoice stage(const std::string& works, Order order) {
  auto weave = std::make_shared<Says>(std::move(order));
  return does("stage", {}, [works, weave](Draft& draft) {
    Pipeline pipeline;
    pipeline.schedule = [works](const ScheduleRequest& request) {
      Schedule schedule = schedule_from_text(works, "by hand");
      schedule.microbatches = request.microbatches;
      return schedule;
    };
    pipeline.weave = weave;
    draft.pipeline(pipeline);
  });
}

std::vector<int> last_lane_first(const WeaveRequest& request) {
  std::vector<int> order;
  for (std::size_t lane = request.lanes.size(); lane-- > 0;)
    order.insert(order.end(), request.lanes[lane]->code.size(), static_cast<int>(lane));
  return order;
}

Setup woven(const std::string& works, int microbatches, Order order,
            std::vector<StrategyChoice> beside = {}) {
  Setup setup;
  setup.options = {{"layers", 2},   {"hidden", 16}, {"heads", 4},
                   {"kv_heads", 4}, {"ffn", 24},    {"vocab", 31}};
  setup.plan = std::move(beside);
  setup.batch = microbatches;
  for (const StrategyChoice& each : setup.plan) setup.batch *= each.strategy->axes()[0].ways;
  setup.microbatch = 1;
  setup.plan.insert(setup.plan.begin(), stage(works, std::move(order)));
  return setup;
}

const Segment& only_braid(const Program& program) {
  const Segment* found = nullptr;
  for (const Segment& segment : program.segments) {
    if (segment.kind != SegmentKind::braid) continue;
    REQUIRE(found == nullptr);
    found = &segment;
  }
  REQUIRE(found != nullptr);
  return *found;
}

}  // namespace

TEST_CASE("Whatever a weave says, a braid is what its works are one after the other") {
  const auto beside = GENERATE(range(0, 5));
  const std::vector<std::vector<StrategyChoice>> mixes = {
      {}, {dp(2, 1 << 9)}, {zero(2, 1)}, {zero(2, 2)}, {zero(2, 3)}};
  const std::string works =
      GENERATE(as<std::string>{}, "0F0 0F1 0F2+0B0 0B1+0B2", "0F0 0F1 0F2+0I1+0I0 0W0+0I2 0W1+0W2");
  DYNAMIC_SECTION(works << ", mix " << beside) {
    must_equal_one_rank(woven(works, 3, last_lane_first, mixes[static_cast<std::size_t>(beside)]));
  }
}

TEST_CASE("One braid stands for all microbatches of its works") {
  const Experiment e = experiment(woven("0F0 0F1+0B0 0F2+0B1 0F3+0B2 0B3", 4, last_lane_first, {}));
  const Program& program = e.plan->programs[0];
  const Segment& braid = only_braid(program);
  CHECK(braid.name == "forward+backward");
  CHECK(braid.weave == "says");
  std::vector<std::pair<int, int>> runs;
  for (const SegmentRun& run : program.timeline) {
    if (&program.segments[run.segment] != &braid) continue;
    REQUIRE(lanes_of(run) == 2);
    runs.emplace_back(microbatch_of(run, 0), microbatch_of(run, 1));
  }
  CHECK(runs == std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {3, 2}});
}

TEST_CASE("A reduction begins after the last sum of any lane") {
  const Experiment e =
      experiment(woven("0F0 0F1 0I0 0I1 0W0+0W1", 2, last_lane_first, {dp(2, 1 << 9)}));
  const Program& program = e.plan->programs[0];
  const Segment& braid = only_braid(program);
  std::set<int> begun;  // slots of gradients
  std::size_t starts = 0, sums = 0;
  for (const Instruction& i : braid.code) {
    if (i.code == Code::start && i.bucket >= 0) {
      begun.insert(program.buckets[i.bucket].flat.gradients);
      ++starts;
    }
    for (const int slot : i.grad_inputs) {
      if (slot < 0 || !program.slots[slot].persistent) continue;
      ++sums;
      CHECK(begun.count(program.root(slot)) == 0);
    }
  }
  CHECK(starts > 1);
  CHECK(sums > starts);
}

TEST_CASE("An order that is no merge is refused") {
  const auto refused = [](const Order& order) -> std::string {
    try {
      experiment(woven("0F0 0F1+0B0 0B1", 2, order));
    } catch (const Error& error) {
      const Problem& problem = error.problems().front();
      return problem.code + ": " + problem.message;
    }
    return "";
  };
  using Catch::Contains;
  CHECK_THAT(refused([](const WeaveRequest&) {
               return std::vector<int>{0, 2};
             }),
             Contains("weave.order: ") && Contains("names lane 2; there are 0 to 1"));
  CHECK_THAT(refused([](const WeaveRequest& request) {
               return std::vector<int>(request.lanes[0]->code.size(), 0);
             }),
             Contains("weave.order: ") && Contains("has 0 instructions of lane 1, backward"));
  CHECK_THAT(refused([](const WeaveRequest&) -> std::vector<int> { throw std::range_error("no"); }),
             Contains("plugin.fault: ") && Contains("interleaved works: no"));
}

TEST_CASE("What scripts are told of instructions") {
  Json out, back;
  Setup setup = woven("0F0 0F1+0B0 0B1", 2,
                      [&](const WeaveRequest& request) {
                        const InstructionFacts facts(request.program);
                        for (const Instruction& i : request.lanes[0]->code) {
                          const Json said = facts.of(*request.lanes[0], i);
                          if (said.value("move", "") != "all-to-all" || i.code != Code::start)
                            continue;
                          (said.at("kind") == "dispatch" ? out : back).push_back(said);
                        }
                        return last_lane_first(request);
                      },
                      {dp(2), ep(2)});
  setup.make_moe();
  setup.batch = 4;
  experiment(setup);
  INFO(out.dump() << " " << back.dump());
  REQUIRE(!out.empty());
  REQUIRE(!back.empty());
  CHECK(out[0].at("layer") == 0);
  CHECK(out[0].at("axis") == "ep");
  CHECK(out[0].at("bytes") > 0);
  CHECK(back[0].at("layer") == 0);
}
