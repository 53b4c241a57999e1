// Gradients beside differences of the loss, which no comparison of mixes can replace.
#include "check/slopes.h"

#include <catch2/catch.hpp>

#include "support/setup.h"

using namespace mw;
using namespace mw::test;

TEST_CASE("The gradients of each family are the derivative of its loss") {
  const std::string model = GENERATE(as<std::string>{}, "llama", "gpt", "moe");
  Setup setup;
  if (model == "gpt") setup.make_gpt();
  if (model == "moe") setup.make_moe();
  DYNAMIC_SECTION(model) {
    const std::vector<Slope> found = slopes(experiment(setup), nullptr);
    CHECK(found.size() > 15);
    double largest = 0;
    for (const Slope& slope : found) {
      INFO(slope.parameters.front() << ": " << slope.backward << ", " << slope.differences);
      CHECK(slope.agrees());
      largest = std::max(largest, std::abs(slope.backward));
    }
    CHECK(largest > 0.01);
  }
}

TEST_CASE("A slope that is off by a thousandth of the gradient or more does not agree") {
  const Slope right{{"w"}, 1.0, 1.0 + 1e-5, 2.0}, wrong{{"w"}, 1.0, 1.01, 2.0};
  CHECK(right.agrees());
  CHECK_FALSE(wrong.agrees());
  CHECK_FALSE(Slope{{"w"}, 0.0, 1e-3, 0.0}.agrees());
}

TEST_CASE("What powersgd leaves out comes in later steps") {
  Setup setup;
  setup.plan = {strategy("dp", {{"ways", 2}, {"hook", {{"kind", "powersgd"}, {"rank", 1}}}})};
  const LossyGradients lost = lossy_gradients(experiment(setup), 64, nullptr);
  INFO(lost.first << " after one step, " << lost.mean << " in the mean");
  CHECK(lost.first > 0.05);
  CHECK(lost.mean < 0.5 * lost.first);
}
