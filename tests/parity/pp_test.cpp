// Pipelines: every schedule gives one rank's gradients, whatever lies beside it.
#include <catch2/catch.hpp>

#include <map>
#include <set>

#include "support/sample.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

Setup stages_of(int layers, bool gpt) {
  Setup setup;
  setup.options = {{"layers", layers}, {"hidden", 16}, {"heads", 4},
                   {"kv_heads", 2},    {"ffn", 24},    {"vocab", 26}};
  if (gpt) setup.make_gpt();
  setup.sequence = 6;
  return setup;
}

void every_schedule(const std::vector<int>& stages_of_each, const std::vector<int>& chunks_of_each,
                    const std::vector<int>& microbatches) {
  registry().plugin("pp");
  for (const Registration* one : registry().list(Kind::scheduler)) {
    const std::string name = one->name;
    const auto scheduler = mw::make<Scheduler>(*one, Values());
    for (const int stages : stages_of_each) {
      const int fixed = scheduler->fixed_chunks();
      for (const int chunks : fixed > 0 ? std::vector<int>{fixed} : chunks_of_each) {
        for (const int m : microbatches) {
          const int parts = stages * chunks;
          // The neighbours take turns, so that each number meets each schedule.
          const int turn = (stages + chunks + m) % 3;
          Setup setup = stages_of(parts, turn == 1);
          const int dp_ways = turn == 0 ? 2 : 1, tp_ways = turn == 1 ? 2 : 1;
          setup.batch = m * dp_ways;
          setup.microbatch = 1;
          setup.plan = {pp(stages, name, std::vector<int>(parts, 1))};
          if (dp_ways > 1) setup.plan.push_back(dp(dp_ways, 1 << 10));
          if (tp_ways > 1) setup.plan.push_back(tp(tp_ways));
          DYNAMIC_SECTION(name << " stages " << stages << " chunks " << chunks << " microbatches "
                               << m << " dp " << dp_ways << " tp " << tp_ways) {
            must_equal_one_rank(setup);
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("Every schedule equals one rank: three stages, fewer microbatches and more") {
  every_schedule({3}, {1, 2}, {2, 5});
}

TEST_CASE("Every schedule equals one rank, with dp and tp beside it", "[matrix]") {
  every_schedule({2, 3, 4}, {1, 2, 3}, {1, 2, 5, 8});
}

TEST_CASE("A tied embedding adds its gradients over the stages that hold it", "[sampled]") {
  const int which = GENERATE(0, 1, 2), before = GENERATE(0, 1, 2);  // axes outside of pp
  const bool is_gpt = GENERATE(false, true);
  if (left_out({which, before, is_gpt}, 2)) return;
  const std::string schedule = std::vector{"1f1b", "interleaved", "zbv"}[which];
  const std::vector<int> layers =
      schedule == "1f1b" ? std::vector<int>{2, 2} : std::vector<int>{1, 1, 1, 1};
  Setup setup = stages_of(4, is_gpt);
  setup.options["tied"] = true;
  setup.microbatch = 1;
  setup.batch = 8;
  setup.plan = {dp(2, 1 << 10), tp(2)};
  setup.plan.insert(setup.plan.begin() + before, pp(2, schedule, layers));
  DYNAMIC_SECTION(schedule << (is_gpt ? " gpt" : " llama") << ", within " << before << " axes") {
    const Experiment e = experiment(setup);
    // In a V one stage holds both ends.
    const Program& first = e.plan->programs.front();
    const bool shared = std::any_of(first.buckets.begin(), first.buckets.end(),
                                    [](const Bucket& b) { return !b.stages.empty(); });
    CHECK(shared == (schedule != "zbv"));
    must_equal_one_rank(setup);
  }
}

TEST_CASE("Stages of unequal size, the outer ones perhaps without a layer") {
  const std::vector<int> layers =
      GENERATE(as<std::vector<int>>{}, std::vector<int>{0, 2, 1}, std::vector<int>{1, 2, 0},
               std::vector<int>{0, 3, 0}, std::vector<int>{1, 1, 1});
  const std::string schedule = GENERATE(as<std::string>{}, "1f1b", "zb-h2");
  Setup setup = stages_of(3, true);
  setup.microbatch = 2;
  setup.batch = 8;
  setup.plan = {pp(3, schedule, layers)};
  DYNAMIC_SECTION(schedule << " " << layers[0] << layers[1] << layers[2]) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("Sequences cut beside a pipeline: parts of the boundary are sent") {
  Setup setup = stages_of(4, false);
  setup.microbatch = 1;
  setup.batch = 4;
  setup.plan = {pp(2, "zb-h1", {2, 2}), sp(2, "allgather")};
  must_equal_one_rank(setup);
}

TEST_CASE("A stage may take microbatches in another order than they are sent") {
  Setup setup = stages_of(2, false);
  setup.microbatch = 2;
  setup.batch = 4;
  setup.plan = {pp_against_the_order()};
  must_equal_one_rank(setup);
}

TEST_CASE("A receive is begun one action ahead, and a send's tensor is let go in time") {
  Setup setup = stages_of(4, false);
  setup.microbatch = 1;
  setup.batch = 8;
  setup.plan = {pp(4, "1f1b", {1, 1, 1, 1})};
  const Experiment e = experiment(setup);
  for (const Program& program : e.plan->programs) {
    INFO("stage " << program.stage);
    std::map<std::pair<int, int>, std::size_t> posted_at;
    std::set<std::pair<int, int>> posted, received, unsent;
    std::size_t most = 0;
    std::vector<std::pair<int, int>> order;  // direction and microbatch of F and B, as they run
    for (const SegmentRun& run : program.timeline) {
      const Segment& s = program.segments[run.segment];
      const std::pair<int, int> what{s.gradient, run.microbatch};
      if (s.kind == SegmentKind::post) {
        posted.insert(what);
        posted_at[what] = order.size();
      }
      if (s.kind == SegmentKind::forward) order.emplace_back(0, run.microbatch);
      if (s.kind == SegmentKind::backward) order.emplace_back(1, run.microbatch);
      if (s.kind == SegmentKind::receive) {
        CHECK(posted.count(what) == 1);
        received.insert(what);
      }
      if (s.kind == SegmentKind::forward && program.stage < 3) unsent.insert({0, run.microbatch});
      if (s.kind == SegmentKind::sent && !s.gradient) unsent.erase(what);
      most = std::max(most, unsent.size());
    }
    CHECK(posted == received);
    CHECK(received.size() == (program.stage == 0 || program.stage == 3 ? 8 : 16));
    for (const auto& [what, at] : posted_at) {
      const auto own = std::find(order.begin(), order.end(), what) - order.begin();
      CHECK(static_cast<std::ptrdiff_t>(at) == std::max<std::ptrdiff_t>(0, own - 1));
    }
    CHECK(unsent.empty());
    // What comes back from the next stage tells that it has begun to receive.
    CHECK(most <= static_cast<std::size_t>(4 - program.stage));
  }
}
