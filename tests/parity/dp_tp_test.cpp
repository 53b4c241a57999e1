// Data and tensor parallelism: every mix has one rank's gradients.
#include <catch2/catch.hpp>

#include "support/setup.h"

using namespace mw;
using namespace mw::test;

// All of 1 to 4 by 1 to 4 are a matrix of cli/test_verify.py.
TEST_CASE("dp x tp equals one rank where the other divides nothing") {
  const auto [d, t] = GENERATE(table<int, int>({{3, 4}, {4, 3}}));
  const bool is_gpt = GENERATE(false, true);
  Setup setup;
  if (is_gpt) setup.make_gpt();
  setup.plan = {dp(d), tp(t)};
  DYNAMIC_SECTION((is_gpt ? "gpt" : "llama") << " dp " << d << " tp " << t) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("Gradient accumulation equals one rank", "[matrix]") {
  const int microbatches = GENERATE(1, 2, 3, 4);
  const bool overlap = GENERATE(true, false);
  const bool is_gpt = GENERATE(true, false);
  Setup setup;
  if (is_gpt) setup.make_gpt();
  setup.batch = 24;
  setup.microbatch = 12 / microbatches;
  setup.plan = {dp(2, 4096, overlap), tp(2)};
  DYNAMIC_SECTION("microbatches " << microbatches << " overlap " << overlap << " gpt " << is_gpt) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("tp outside dp, and an axis of one rank") {
  Setup setup;
  setup.plan = {tp(2), dp(3)};
  must_equal_one_rank(setup);
  setup.plan = {dp(1), tp(2)};
  must_equal_one_rank(setup);
}

TEST_CASE("Weight gradients that run beside an all-reduce give the same gradients") {
  const bool is_gpt = GENERATE(true, false);
  Setup setup;
  if (is_gpt) setup.make_gpt();
  setup.microbatch = 3;
  setup.plan = {dp(2), tp(2, true)};
  const Program program = experiment(setup).plan->programs.front();
  const auto& code = program.segments[program.segment("backward")].code;
  int between = 0;  // wgrads between a start and its wait
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (code[i].code != Code::start) continue;
    for (std::size_t j = i + 1; code[j].code != Code::wait; ++j)
      between += code[j].piece == Piece::wgrad;
  }
  CHECK(between == (is_gpt ? 2 * 4 + 1 : 2 * 5 + 1));  // q, k, v and the mlp's first; the head
  must_equal_one_rank(setup);
}

TEST_CASE(
    "... and each bucket is reduced when its own are there, where that is as backward goes on") {
  const int stage = GENERATE(2, 3);
  Setup setup;
  setup.microbatch = 3;
  setup.plan = {zero(2, stage), tp(2, true)};
  must_equal_one_rank(setup);
}
