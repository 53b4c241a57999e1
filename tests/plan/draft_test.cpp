// What strategies ask of a draft that is not there, and what looks like it but is.
#include <catch2/catch.hpp>

#include "meshwright/passes.h"
#include "support/problems.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

std::string refusal(std::vector<StrategyChoice> plan, const std::string& model = "llama") {
  Setup setup;
  if (model == "moe") setup.make_moe();
  setup.plan = std::move(plan);
  try {
    experiment(setup);
  } catch (const Error& error) {
    return codes(error.problems());
  }
  return "accepted";
}

std::string refusal(int ways, Edit edit) {
  return refusal({does("x", {{"x", ways, {}}}, std::move(edit))});
}

bool nothing(const Op&) {
  return false;
}

}  // namespace

TEST_CASE("A rule whose dim or axis is not there is refused with those that are") {
  CHECK(refusal(2, [](Draft& d) { d.shard("bacth", "x"); }) == "rule.dim plan");
  CHECK(refusal(2, [](Draft& d) { d.shard("batch", "y"); }) == "axis.unknown plan");
  // Even where it would change nothing.
  CHECK(refusal(1, [](Draft& d) { d.shard("bacth", "x"); }) == "rule.dim plan");
}

TEST_CASE("Every fault of a plan is told at once, and what follows from one is not") {
  const std::string refused = refusal(2, [](Draft& d) {
    d.shard("bacth", "x");
    d.shard_where("heads", "x", nothing);
    d.store("hiden", "x", {});
  });
  CHECK(refused == "rule.dim plan; rule.dim plan; rule.matches-nothing plan");
}

TEST_CASE("A dim that the model declares and no layer has is no fault") {
  // All layers have experts: "ffn" is a dim of the model, and no op's.
  CHECK(refusal({tp(2)}, "moe") == "accepted");
  CHECK(refusal({does("x", {{"x", 2, {}}},
                      [](Draft& d) {
                        d.shard("ffn", "x");
                        d.shard("expert_ffn", "x");
                      })},
                "moe") == "accepted");
}

TEST_CASE("... nor is a rule for particular ops, if there are such ops") {
  const auto with = [](bool takes) {
    return refusal({does("x", {{"x", 2, {}}},
                         [=](Draft& d) {
                           d.shard("batch", "x");
                           d.shard_in("ffn", "x", [=](const Op&) { return takes; });
                         })},
                   "moe");
  };
  CHECK(with(true) == "accepted");
  CHECK(with(false) == "rule.matches-nothing plan");
}

TEST_CASE("A dim of which a model's indices know nothing may be cut") {
  // What tokens chose is a list of places, alike on every rank: no sum.
  Setup setup;
  setup.make_moe();
  setup.plan = {does("x", {{"x", 2, {}}}, [](Draft& d) { d.shard("hidden", "x"); })};
  CHECK(verify(experiment(setup)).equal);
}

TEST_CASE("An axis of several ranks on which nothing lives is refused") {
  CHECK(refusal(2, [](Draft&) {}) == "axis.idle plan");
  CHECK(refusal(1, [](Draft&) {}) == "accepted");
  // Another's rule may live there, and another may lend its ranks.
  CHECK(refusal({does("x", {{"x", 2, {}}}, [](Draft&) {}),
                 does("y", {}, [](Draft& d) { d.shard("batch", "x"); })}) == "accepted");
  CHECK(refusal({dp(2), does("y", {{"y", 2, {}, {"dp"}}}, [](Draft&) {})}) == "axis.idle plan");
  // Half of the ranks.
  CHECK(refusal({does("x", {{"x", 4, {}}}, [](Draft&) {}),
                 does("y", {{"y", 2, {}, {"x"}}}, [](Draft& d) { d.shard("batch", "y"); })}) ==
        "axis.idle plan");
}

TEST_CASE("Storage alone is a use of an axis") {
  CHECK(refusal(2, [](Draft& d) { d.store("hidden", "x", {}); }) == "accepted");
}

TEST_CASE("A pass may say that it works on an axis") {
  CHECK(refusal(2, [](Draft& d) {
          d.add_pass({"mine", [](Program&) {}, Pass::instructions, "x"});
        }) == "accepted");
  CHECK(refusal(2, [](Draft& d) {
          d.shard("heads", "x");
          d.add_pass(reduce_each_microbatch("y"));
        }) == "axis.unknown plan");
}

TEST_CASE("The same rule for the same ops is refused, whoever says it") {
  const Edit rule = [](Draft& d) {
    d.shard_where("seq", "dp", [](const Op& op) { return op.kind() != "attention"; });
  };
  // Beside each op where they clash with dp's own.
  CHECK_THAT(refusal({dp(2), does("a", {}, rule), does("b", {}, rule)}),
             Catch::EndsWith("; rule.twice plan"));
  CHECK(refusal(2, [](Draft& d) {
          d.shard("batch", "x");
          d.shard("batch", "x");
        }) == "rule.twice plan");
}

TEST_CASE("Two entries that ask for the very same are refused") {
  const StrategyChoice same = does("a", {}, [](Draft& d) { d.note("here"); });
  CHECK(refusal({same, same}) == "plan.twice plan");
  StrategyChoice other = same;
  other.options = {{"how", "otherwise"}};
  CHECK(refusal({same, other}) == "accepted");
}

TEST_CASE("Atoms of a rule are those of its axis") {
  for (int atom : {-1, 1, 7, 1 << 30}) {
    CHECK(refusal(2, [=](Draft& d) {
            d.shard_in("batch", "x", [](const Op&) { return true; }, {atom});
          }) == "axis.atom plan");
  }
}

TEST_CASE("Axes that cannot be are refused before there is a mesh") {
  const auto axis = [](const std::string& name, int ways) {
    return refusal({does("x", {{name, ways, {}}}, [](Draft&) {})});
  };
  for (int ways : {0, -1, -2147483647 - 1, (1 << 24) + 1, 2147483647})
    CHECK(axis("x", ways) == "axis.ways plan");
  for (const char* name : {"", "1", "a b", "a-b", "a.b", "ä", "\xff", "world", "none", "a\n"})
    CHECK(axis(name, 2) == "axis.name plan");
}

TEST_CASE("An axis may name one lender twice, and lends its ranks once") {
  CHECK(refusal({dp(2), does("y", {{"y", 4, {}, {"dp", "dp"}}}, [](Draft&) {})}) ==
        "axis.cannot-borrow plan.ways");
}
