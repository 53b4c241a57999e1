// An axis that borrows ranks: experts live on ep, which takes dp's inner ranks. Here the ffn plays
// the experts: cut by ep in the mlp, while the batch is cut by dp everywhere else.
#include <catch2/catch.hpp>

#include "../support/problems.h"
#include "fixture.h"

using namespace mw;
using namespace mw::test;

namespace {

class Borrows : public Strategy {
 public:
  explicit Borrows(int ways) : ways_(ways) {}
  std::vector<AxisRequest> axes() const override { return {{"ep", ways_, {"dp"}}}; }
  void edit(Draft& draft) const override {
    draft.shard_in("ffn", "ep",
                   [](const Op& op) { return op.name.find(".mlp.") != std::string::npos; });
  }

 private:
  int ways_;
};

}  // namespace

TEST_CASE("A named rule on a borrowed axis takes over there, and only there") {
  const int dp_ways = GENERATE(2, 4), ep_ways = GENERATE(2, 4);
  const bool with_tp = GENERATE(false, true);
  if (ep_ways > dp_ways) return;
  Setup setup;
  setup.batch = 8;
  setup.plan = {dp(dp_ways), choice("ep", std::make_shared<Borrows>(ep_ways))};
  if (with_tp)
    setup.plan.push_back(
        choice("tp", std::make_shared<Rules>("tp", 2, Dims{"heads", "kv_heads", "vocab"})));
  const Experiment e = experiment(setup);
  const Program& program = e.plan->programs.front();
  CHECK(e.plan->mesh.atoms().size() == (ep_ways < dp_ways ? 2u : 1u) + (with_tp ? 1u : 0u));

  // The mlp's weights are cut by ep and reduced over the rest of dp only; the norms over all of dp.
  for (const ProgramParameter& p : program.parameters) {
    const std::string& name = program.graph->value(p.value).name;
    const int inner = e.plan->mesh.axis("ep").atoms[0];
    if (name.find(".mlp.") != std::string::npos) {
      CHECK(p.stored[inner].is_shard());
      CHECK_FALSE(p.accumulated[inner].is_partial());
    }
    if (name.find("norm") != std::string::npos) {
      for (int atom : e.plan->mesh.axis("dp").atoms) CHECK(p.accumulated[atom].is_partial());
    }
  }
  const VerifyOutcome outcome = verify(e);
  INFO(describe(outcome, e.plan->mix()));
  CHECK(outcome.equal);
}

TEST_CASE("Two strategies that claim the same ranks with equal right are refused, both named") {
  Setup setup;
  setup.plan = {dp(2), choice("greedy", std::make_shared<Rules>("other", 2, Dims{"ffn"}))};
  CHECK_NOTHROW(experiment(setup));
  class Greedy : public Strategy {
   public:
    std::vector<AxisRequest> axes() const override { return {{"ep", 2, {"dp"}}}; }
    void edit(Draft& draft) const override { draft.shard("ffn", "ep"); }
  };
  setup.plan[1] = choice("greedy", std::make_shared<Greedy>());
  CHECK(thrown([&] { experiment(setup); }).starts_with("rule.clash plan"));
}
