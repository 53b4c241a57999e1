// What strategies ask of a draft that is not there, and what looks like it but is.
#include <catch2/catch.hpp>

#include "../parity/fixture.h"

using namespace mw;
using namespace mw::test;
using Catch::Contains;

namespace {

using Edit = std::function<void(Draft&)>;

// Axes, and what is done with them.
class Does : public Strategy {
 public:
  Does(std::vector<AxisRequest> axes, Edit edit) : axes_(std::move(axes)), edit_(std::move(edit)) {}
  std::vector<AxisRequest> axes() const override { return axes_; }
  void edit(Draft& draft) const override { edit_(draft); }

 private:
  std::vector<AxisRequest> axes_;
  Edit edit_;
};

StrategyChoice does(const std::string& name, std::vector<AxisRequest> axes, Edit edit) {
  return choice(name, std::make_shared<Does>(std::move(axes), std::move(edit)));
}

std::string refusal(std::vector<StrategyChoice> plan, const std::string& model = "llama") {
  Setup setup;
  setup.model = model;
  if (model == "moe") {
    setup.options["experts"] = 4;
    setup.options["top_k"] = 2;
  }
  setup.plan = std::move(plan);
  try {
    experiment(setup);
  } catch (const Error& error) {
    return error.what();
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
  CHECK_THAT(
      refusal(2, [](Draft& d) { d.shard("bacth", "x"); }),
      Contains("plan: x: bacth -> x names \"bacth\"") && Contains("did you mean \"batch\"?"));
  CHECK_THAT(refusal(2, [](Draft& d) { d.shard("batch", "y"); }),
             Contains("no such axis") && Contains("axes: x"));
  // Even where it would change nothing.
  CHECK_THAT(refusal(1, [](Draft& d) { d.shard("bacth", "x"); }), Contains("did you mean"));
}

TEST_CASE("Every fault of a plan is told at once, and what follows from one is not") {
  const std::string said = refusal(2, [](Draft& d) {
    d.shard("bacth", "x");
    d.shard_where("heads", "x", nothing);
    d.store("hiden", "x", {});
  });
  CHECK_THAT(said, Contains("bacth") && Contains("heads -> x") && Contains("hiden") &&
                       !Contains("nothing lives"));
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
  CHECK_THAT(with(false), Contains("ffn -> x is for particular ops, and its `where` takes none"));
}

TEST_CASE("A dim of which a model's indices know nothing may be cut") {
  // What tokens chose is a list of places, alike on every rank: no sum.
  Setup setup;
  setup.model = "moe";
  setup.options["experts"] = 4;
  setup.options["top_k"] = 2;
  setup.plan = {does("x", {{"x", 2, {}}}, [](Draft& d) { d.shard("hidden", "x"); })};
  CHECK(verify(experiment(setup)).equal);
}

TEST_CASE("An axis of several ranks on which nothing lives is refused") {
  CHECK_THAT(refusal(2, [](Draft&) {}), Contains("nothing lives on the axis x (2 ranks)"));
  CHECK(refusal(1, [](Draft&) {}) == "accepted");
  // Another's rule may live there, and another may lend its ranks.
  CHECK(refusal({does("x", {{"x", 2, {}}}, [](Draft&) {}),
                 does("y", {}, [](Draft& d) { d.shard("batch", "x"); })}) == "accepted");
  CHECK_THAT(refusal({dp(2), does("y", {{"y", 2, {"dp"}}}, [](Draft&) {})}),
             Contains("nothing lives on the axis y (2 ranks)") && !Contains("same work"));
  // Half of the ranks.
  CHECK_THAT(refusal({does("x", {{"x", 4, {}}}, [](Draft&) {}),
                      does("y", {{"y", 2, {"x"}}}, [](Draft& d) { d.shard("batch", "y"); })}),
             Contains("axis x (4 ranks) beyond 2 of them") && Contains("same work"));
}

TEST_CASE("Storage alone is a use of an axis") {
  CHECK(refusal(2, [](Draft& d) { d.store("hidden", "x", {}); }) == "accepted");
}

TEST_CASE("A pass may say that it works on an axis") {
  CHECK(refusal(2, [](Draft& d) {
          d.add_pass({"mine", [](Program&) {}, Pass::instructions, "x"});
        }) == "accepted");
  CHECK_THAT(refusal(2,
                     [](Draft& d) {
                       d.shard("heads", "x");
                       d.add_pass(reduce_each_microbatch("y"));
                     }),
             Contains("axes: x"));
}

TEST_CASE("The same rule for the same ops is refused, whoever says it") {
  const Edit rule = [](Draft& d) {
    d.shard_where("seq", "dp", [](const Op& op) { return op.kind() != "attention"; });
  };
  CHECK_THAT(refusal({dp(2), does("a", {}, rule), does("b", {}, rule)}),
             Contains("b: seq -> dp is what a (plan) says already"));
  CHECK_THAT(refusal(2,
                     [](Draft& d) {
                       d.shard("batch", "x");
                       d.shard("batch", "x");
                     }),
             Contains("said twice"));
}

TEST_CASE("Two entries that ask for the very same are refused") {
  const StrategyChoice twin = does("a", {}, [](Draft& d) { d.note("here"); });
  CHECK_THAT(refusal({twin, twin}), Contains("a: it is what plan asks for already"));
  StrategyChoice other = twin;
  other.options = {{"how", "otherwise"}};
  CHECK(refusal({twin, other}) == "accepted");
}

TEST_CASE("Atoms of a rule are those of its axis") {
  for (int atom : {-1, 1, 7, 1 << 30}) {
    CHECK_THAT(
        refusal(
            2, [=](Draft& d) { d.shard_in("batch", "x", [](const Op&) { return true; }, {atom}); }),
        Contains("atom " + std::to_string(atom)));
  }
}

TEST_CASE("Axes that cannot be are refused before there is a mesh") {
  const auto axis = [](const std::string& name, int ways) {
    return refusal({does("x", {{name, ways, {}}}, [](Draft&) {})});
  };
  for (int ways : {0, -1, -2147483647 - 1, (1 << 24) + 1, 2147483647})
    CHECK_THAT(axis("x", ways), Contains("1 to 16777216"));
  for (const char* name : {"", "1", "a b", "a-b", "a.b", "ä", "\xff", "world", "none", "a\n"})
    CHECK_THAT(axis(name, 2), Contains("it asks for an axis named"));
}

TEST_CASE("An axis may name one lender twice, and lends its ranks once") {
  CHECK_THAT(refusal({dp(2), does("y", {{"y", 4, {"dp", "dp"}}}, [](Draft&) {})}),
             Contains("cannot borrow ranks of dp"));
}
