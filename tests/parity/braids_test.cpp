// Works that share a stage, interleaved, compute what one rank does.
#include <catch2/catch.hpp>

#include "support/braids.h"
#include "support/sample.h"

using namespace mw;
using namespace mw::test;

namespace {

// Every lane's instructions stand in the braid in their own order, and none is missing but what one
// lane does for all: gathers of parameters that several would make.
void must_be_merged(const Program& program, const Segment& braid) {
  for (std::size_t lane = 0; lane < braid.lanes.size(); ++lane) {
    const int of = program.segment(braid.lanes[lane].segment);
    REQUIRE(of >= 0);
    const std::vector<Instruction>& own = program.segments[of].code;
    std::size_t next = 0;
    for (const Instruction& i : braid.code) {
      if (i.lane != static_cast<int>(lane)) continue;
      const auto same = [&](const Instruction& o) {
        return o.code == i.code && o.op == i.op && o.piece == i.piece && o.pending == i.pending &&
               o.inputs == i.inputs && o.outputs == i.outputs;
      };
      while (next < own.size() && !same(own[next])) {
        INFO(braid.name << ", lane " << lane << ": " << own[next].label);
        CHECK(own[next].bucket >= 0);
        ++next;
      }
      REQUIRE(next < own.size());
      ++next;
    }
  }
}

}  // namespace

TEST_CASE("Braids of every schedule that pairs equal one rank", "[sampled]") {
  const auto all = static_cast<int>(beside_pairs().size());
  const int schedule = GENERATE(range(0, 6)), beside = GENERATE_COPY(range(0, all));
  const bool users = GENERATE(false, true), recompute = GENERATE(false, true);
  if (left_out({schedule, beside, 3 * users, 5 * recompute}, 13)) return;
  const NamedMix mix = paired_mix(schedule, beside, users, recompute);
  DYNAMIC_SECTION(mix.name) {
    const Experiment e = experiment(mix.setup);
    std::size_t braids = 0;
    for (const Program& program : e.plan->programs) {
      for (const SegmentRun& run : program.timeline) CHECK(!run.joined);
      for (const Segment& segment : program.segments) {
        if (segment.kind != SegmentKind::braid) continue;
        ++braids;
        CHECK(segment.weave == (users ? "in turn" : "switch"));
        must_be_merged(program, segment);
      }
    }
    CHECK(braids > 0);
    must_equal_one_rank(mix.setup);
  }
}

TEST_CASE("Lanes that use the same parameters gather them once") {
  Setup apart = paired_mix(0, 3, false, false).setup, together = apart;
  apart.plan[0] = pp(2, "1f1b", {2, 2});
  const auto gathers = [](const Setup& setup) {
    int count = 0;  // in a step of the first stage
    const Experiment e = experiment(setup);
    const Program& program = e.plan->programs[0];
    for (const SegmentRun& run : program.timeline) {
      for (const Instruction& i : program.segments[run.segment].code) {
        if (i.code == Code::start && i.move.kind == Move::Kind::all_gather && i.bucket >= 0)
          ++count;
      }
    }
    return count;
  };
  const int one = gathers(apart), braided = gathers(together);
  CHECK(braided < one);
  CHECK(braided > one / 2);
}
