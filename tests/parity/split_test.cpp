// The split backward: dgrad at once, wgrad later, as zero-bubble schedules want it.
#include <catch2/catch.hpp>

#include "support/setup.h"

using namespace mw;
using namespace mw::test;

TEST_CASE("A wgrad that waits for all dgrads gives the same gradients") {
  const bool is_gpt = GENERATE(false, true);
  Setup setup;
  if (is_gpt) setup.make_gpt();
  setup.batch = 12;
  setup.microbatch = 2;
  setup.plan = {delayed_wgrads(), dp(2), tp(2)};
  const Experiment e = experiment(setup);
  const Program& program = e.plan->programs.front();
  REQUIRE(program.segment("wgrad") >= 0);
  int split = 0;
  for (const Instruction& i : program.segments[program.segment("wgrad")].code) {
    if (i.code == Code::compute) {
      CHECK(i.piece == Piece::wgrad);
      ++split;
    }
  }
  CHECK(split == (is_gpt ? 2 * 6 + 1 : 2 * 7 + 1));  // every linear, the head among them
  for (const Instruction& i : program.segments[program.segment("dgrad")].code) {
    CHECK_FALSE((i.code == Code::compute && i.piece == Piece::wgrad));
  }
  must_equal_one_rank(setup);
}
