// Attention whose scores exist: each mix equals one rank, and a ring refuses it.
#include <catch2/catch.hpp>

#include "support/setup.h"

using namespace mw;
using namespace mw::test;

TEST_CASE("Unfused attention equals one rank in every mix that can have it") {
  const bool is_gpt = GENERATE(false, true), selective = GENERATE(false, true);
  const int which = GENERATE(0, 1, 2, 3, 4);
  Setup setup;
  if (is_gpt) setup.make_gpt();
  setup.options["attention"] = "unfused";
  if (!is_gpt) setup.options["window"] = 5;
  if (selective) setup.recompute.kind = RecomputePolicy::Kind::selective;
  switch (which) {
    case 0:
      setup.plan = {dp(2), tp(2), sp()};
      break;
    case 1:
      setup.plan = {strategy("sp", {{"ways", 2}, {"form", "allgather"}}), tp(2)};
      break;
    case 2:
      setup.plan = {strategy("sp", {{"ways", 2}, {"form", "ulysses"}}), dp(2)};
      break;
    case 3:
      setup.plan = {strategy("pp", {{"ways", 2}}), tp(2)};
      setup.microbatch = 3;
      break;
    default:
      setup.plan = {strategy("zero", {{"ways", 2}, {"stage", 3}}), tp(3)};
  }
  DYNAMIC_SECTION((is_gpt ? "gpt" : "llama") << " mix " << which << " selective " << selective) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("Keys of unfused attention do not go round a ring") {
  Setup setup;
  setup.options["attention"] = "unfused";
  setup.plan = {strategy("sp", {{"ways", 2}, {"form", "ring"}})};
  try {
    experiment(setup);
    FAIL("was not refused");
  } catch (const std::exception& e) {
    CHECK(std::string(e.what()).find("attention = \"flash\"") != std::string::npos);
  }
}
