// What a plan refuses: every problem at once, with the numbers and the nearest valid choice.
#include <catch2/catch.hpp>

#include "support/problems.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

std::string refusal(const Setup& setup) {
  try {
    experiment(setup);
  } catch (const Error& error) {
    CHECK(error.exit_code() == 3);
    return codes(error.problems());
  }
  return "accepted";
}

}  // namespace

TEST_CASE("Heads that do not divide") {
  Setup setup;
  setup.options["heads"] = 4;
  setup.options["kv_heads"] = 4;
  setup.plan = {tp(3)};
  CHECK(refusal(setup) == "axis.cannot-split plan.ways");
}

TEST_CASE("A batch that does not divide") {
  Setup setup;
  setup.batch = 10;
  setup.plan = {dp(4)};
  CHECK(refusal(setup) == "batch.uneven batch");
  setup.batch = 12;
  setup.microbatch = 4;
  CHECK(refusal(setup) == "microbatch.too-large microbatch");
}

TEST_CASE("Two problems are told together") {
  Setup setup;
  setup.options["heads"] = 4;
  setup.options["kv_heads"] = 4;
  setup.batch = 10;
  setup.plan = {dp(4), tp(3)};
  CHECK(refusal(setup) == "batch.uneven batch; axis.cannot-split plan.ways");
}

TEST_CASE("An axis that is asked for twice") {
  Setup setup;
  setup.plan = {dp(2), dp(2)};
  CHECK(refusal(setup) == "axis.twice plan");
}

TEST_CASE("More ranks than a dim has parts") {
  Setup setup;
  setup.options["vocab"] = 3;
  setup.plan = {tp(4)};
  CHECK(refusal(setup) == "axis.cannot-split plan.ways");
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
