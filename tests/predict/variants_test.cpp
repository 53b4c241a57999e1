// Variants of a plan: which errors refuse one, what a change sets, and which variant is kept.
#include "predict/variants.h"

#include <catch2/catch.hpp>

#include "setups.h"
#include "support/problems.h"

using namespace mw;
using namespace mw::test;

TEST_CASE("An error refuses a plan, and a stop ends all") {
  Problems problems;
  const auto refused = []() -> std::optional<int> {
    throw Error(Stage::plan, "memory.limit", "memory", "too little");
  };
  CHECK_FALSE(unless_refused(refused, &problems));
  CHECK(problems.list().front().code == "memory.limit");
  CHECK_THROWS_AS(unless_refused([]() -> int { throw Stopped("interrupted"); }), Stopped);
}

TEST_CASE("A change sets what it names and leaves the rest") {
  PlanRequest request = experiment(llama({dp(2)}, 2)).plan->request;
  request.sizes = {2, 2};
  request.stage_layers = {1, 1};
  const Change change{nullptr, 1, "full"};
  const PlanRequest changed = change.of(request);
  CHECK(changed.microbatch == 1);
  CHECK(changed.sizes.empty());
  CHECK(changed.recompute.kind == RecomputePolicy::Kind::full);
  CHECK(changed.stage_layers == request.stage_layers);
  CHECK_THAT(change.text(changed), Catch::EndsWith(" }, microbatch = 1, recompute = \"full\""));
  CHECK(Change{&request.strategies}.of(request).stage_layers.empty());
}

TEST_CASE("The first variant that fits is found, and the lowest is kept") {
  Variants variants{10, 1};
  for (const std::int64_t need : {12, 11, 9, 8}) variants.keep({{}, {}, "", need});
  CHECK(variants.found->need == 9);
  CHECK(variants.lowest->need == 8);
}
