// Attention whose keys go round a ring, are gathered or are shared out by heads, beside another
// axis that cuts the sequence: a rank's queries meet all keys before them in whatever order these
// come, and whichever axis is the outer one.
#include <catch2/catch.hpp>

#include <algorithm>

#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

StrategyChoice sequence_axis() {
  return does("cut", {{"cut", 2, Role::sequence}}, [](Draft& draft) { draft.shard("seq", "cut"); });
}

// Instructions that stand for all steps of a ring.
std::ptrdiff_t rings(const Experiment& e) {
  std::ptrdiff_t count = 0;
  for (const Segment& segment : e.plan->programs.front().segments) {
    count += std::count_if(segment.code.begin(), segment.code.end(),
                           [](const Instruction& i) { return i.ring != nullptr; });
  }
  return count;
}

}  // namespace

TEST_CASE("Every form of sp beside another axis of the sequence equals one rank, in either order") {
  const auto [name, options, ring] = GENERATE(table<std::string, Json, bool>({
      {"ring", {{"ways", 2}, {"form", "ring"}}, true},
      {"ring, not balanced", {{"ways", 2}, {"form", "ring"}, {"balance", "none"}}, true},
      {"ring of three", {{"ways", 3}, {"form", "ring"}}, true},
      {"gathered", {{"ways", 2}, {"form", "allgather"}}, false},
      {"gathered, not balanced", {{"ways", 2}, {"form", "allgather"}, {"balance", "none"}}, false},
      {"ulysses", {{"ways", 2}, {"form", "ulysses"}}, false},
      {"mixed", {{"ways", 4}, {"form", "ring"}, {"ulysses", 2}}, true},
      {"mixed, not balanced",
       {{"ways", 4}, {"form", "ring"}, {"ulysses", 2}, {"balance", "none"}},
       true},
      {"mixed, gathered", {{"ways", 4}, {"form", "allgather"}, {"ulysses", 2}}, false},
  }));
  const bool outer = GENERATE(false, true), odd = GENERATE(false, true);
  Setup setup;
  setup.options["layers"] = 1;
  setup.sequence = odd ? 17 : 24;
  setup.batch = 2;
  if (odd) setup.options["window"] = 5;
  setup.plan = {strategy("sp", options)};
  setup.plan.insert(outer ? setup.plan.begin() : setup.plan.end(), sequence_axis());
  DYNAMIC_SECTION(name << ", sp is the " << (outer ? "inner" : "outer") << " axis, of "
                       << setup.sequence << " tokens") {
    CHECK(rings(experiment(setup)) == (ring ? 2 : 0));  // forward and backward
    must_equal_one_rank(setup);
  }
}
