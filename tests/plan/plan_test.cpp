// What a plan refuses: every problem at once, with the numbers and the nearest valid choice.
#include <catch2/catch.hpp>

#include "../parity/fixture.h"

using namespace mw;
using namespace mw::test;
using Catch::Contains;

namespace {

std::string refusal(const Setup& setup) {
  try {
    experiment(setup);
  } catch (const Error& error) {
    CHECK(error.exit_code() == 3);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("Heads that do not divide") {
  Setup setup;
  setup.options["heads"] = 4;
  setup.options["kv_heads"] = 4;
  setup.plan = {tp(3)};
  CHECK_THAT(refusal(setup), Contains("tp(3) cannot split 4 heads") && Contains("tp(2), tp(4)"));
}

TEST_CASE("A batch that does not divide") {
  Setup setup;
  setup.batch = 10;
  setup.plan = {dp(4)};
  CHECK_THAT(refusal(setup), Contains("dp(4)") && Contains("10 sequences") && Contains("8 or 12"));
  setup.batch = 12;
  setup.microbatch = 4;
  CHECK_THAT(refusal(setup),
             Contains("4 sequences are more than the 3 of each rank") && Contains("nearest: 3"));
}

TEST_CASE("Two problems are told together") {
  Setup setup;
  setup.options["heads"] = 4;
  setup.options["kv_heads"] = 4;
  setup.batch = 10;
  setup.plan = {dp(4), tp(3)};
  CHECK_THAT(refusal(setup), Contains("cannot split 4 heads") && Contains("10 sequences"));
}

TEST_CASE("An axis that is asked for twice") {
  Setup setup;
  setup.plan = {dp(2), dp(2)};
  CHECK_THAT(refusal(setup), Contains("axis dp"));
}

TEST_CASE("More ranks than a dim has parts") {
  Setup setup;
  setup.options["vocab"] = 3;
  setup.plan = {tp(4)};
  CHECK_THAT(refusal(setup), Contains("tp(4) cannot split 3 vocab"));
}

TEST_CASE("A plan's hash tells plans apart and is the same for the same") {
  Setup setup;
  setup.plan = {dp(2)};
  const std::string hash = experiment(setup).plan->hash();
  CHECK(hash.size() == 16);
  CHECK(experiment(setup).plan->hash() == hash);
  setup.batch = 24;
  CHECK(experiment(setup).plan->hash() != hash);
  setup.batch = 12;
  setup.plan = {tp(2)};
  CHECK(experiment(setup).plan->hash() != hash);
}

TEST_CASE("One rank computes the same microbatches") {
  Setup setup;
  setup.batch = 24;
  setup.microbatch = 4;
  setup.plan = {dp(3), tp(2)};
  const auto plan = experiment(setup).plan;
  const auto one = one_rank_plan(*plan, true);
  CHECK(one->ranks() == 1);
  CHECK(one->microbatches == plan->microbatches);
  CHECK(one->graph->size("batch") == plan->graph->size("batch"));
  CHECK(one_rank_plan(*plan, false)->microbatches == 1);
}
