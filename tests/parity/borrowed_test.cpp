// An axis that borrows ranks: experts live on ep, which takes dp's inner ranks, while the batch is
// cut by dp everywhere else.
#include <catch2/catch.hpp>

#include "support/problems.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

TEST_CASE("A named rule on a borrowed axis takes over there, and only there") {
  const int dp_ways = GENERATE(2, 4), ep_ways = GENERATE(2, 4);
  const bool with_tp = GENERATE(false, true);
  if (ep_ways > dp_ways) return;
  Setup setup;
  setup.batch = 8;
  setup.make_moe();
  setup.plan = {dp(dp_ways), ep(ep_ways)};
  if (with_tp) setup.plan.push_back(tp(2));
  const Experiment e = experiment(setup);
  const Program& program = e.plan->programs.front();
  CHECK(e.plan->mesh.atoms().size() == (ep_ways < dp_ways ? 2u : 1u) + (with_tp ? 1u : 0u));

  // Experts' weights are cut by ep and reduced over the rest of dp only; the norms over all of dp.
  for (const ProgramParameter& p : program.parameters) {
    const std::string& name = program.graph->value(p.value).name;
    const int inner = e.plan->mesh.axis("ep").atoms[0];
    if (name.find(".experts.") != std::string::npos) {
      CHECK(p.stored[inner].is_shard());
      CHECK_FALSE(p.accumulated[inner].is_partial());
    }
    if (name.find("norm") != std::string::npos) {
      for (int atom : e.plan->mesh.axis("dp").atoms) CHECK(p.accumulated[atom].is_partial());
    }
  }
  must_equal_one_rank(setup);
}

TEST_CASE("Two strategies that claim the same ranks with equal right are refused, both named") {
  Setup setup;
  const auto greedy = [](const AxisRequest& axis) {
    return does("greedy", {axis}, [=](Draft& draft) { draft.shard("ffn", axis.name); });
  };
  setup.plan = {dp(2), greedy({"other", 2, {}})};
  CHECK_NOTHROW(experiment(setup));
  setup.plan[1] = greedy({"ep", 2, {}, {"dp"}});
  CHECK(thrown([&] { experiment(setup); }).starts_with("rule.clash plan"));
}
