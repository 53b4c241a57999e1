// tp's collectives beside weight gradients, where a backward is whole and where it is parted into
// I and W.
#include <algorithm>
#include <catch2/catch.hpp>

#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

// Weight gradients that are computed in I.
int brought(const Plan& plan) {
  int count = 0;
  for (const Program& program : plan.programs) {
    for (const Segment& segment : program.segments) {
      if (segment.kind != SegmentKind::dgrad || segment.copy_of >= 0) continue;
      count += static_cast<int>(
          std::count_if(segment.code.begin(), segment.code.end(),
                        [](const Instruction& i) { return i.piece == Piece::wgrad && i.op >= 0; }));
    }
  }
  return count;
}

}  // namespace

TEST_CASE("tp's overlap where backwards are parted equals one rank") {
  const std::string schedule = GENERATE(as<std::string>{}, "zb-h1", "zbv", "dualpipev");
  const int stage = GENERATE(0, 1, 2, 3);
  const bool recompute = GENERATE(false, true), is_gpt = stage % 2 == 1;
  const bool chunked = schedule != "zb-h1";
  Setup setup;
  if (is_gpt) setup.make_gpt();
  setup.options["layers"] = 4;
  setup.batch = 8;
  setup.microbatch = 1;
  if (recompute) setup.recompute.kind = RecomputePolicy::Kind::full;
  setup.plan = {pp(2, schedule, chunked ? std::vector{1, 1, 1, 1} : std::vector{2, 2}),
                tp(2, /*overlap=*/true)};
  if (stage > 0) setup.plan.insert(setup.plan.begin() + 1, zero(2, stage));
  DYNAMIC_SECTION(schedule << " zero " << stage << (recompute ? " recompute" : "")
                           << (is_gpt ? " gpt" : " llama")) {
    CHECK(brought(*experiment(setup).plan) > 0);
    must_equal_one_rank(setup);
  }
}

TEST_CASE("With sp the collectives of I are hidden too") {
  Setup setup;
  setup.options["layers"] = 4;
  setup.batch = 8;
  setup.microbatch = 1;
  setup.plan = {pp(2, "zb-h1", {2, 2}), tp(2, true), strategy("sp", Json::object())};
  CHECK(brought(*experiment(setup).plan) > 0);
  must_equal_one_rank(setup);
}
