// What streams of a program do to its price: transfers of one stream go in their order, on whatever
// links, and those of two beside each other.
#include <algorithm>
#include <catch2/catch.hpp>

#include "clusters.h"
#include "predict/prediction.h"
#include "setups.h"
#include "support/passes.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

// tp inside of nodes, dp over a slow network between them.
ClusterMachine two_links() {
  Cluster cluster = round_cluster(2);
  cluster.nodes = 4;
  cluster.network.nic = 1e8;
  return {cluster, round_stack()};
}

struct Played {
  double step = 0;
  bool beside = false;  // a transfer begins before an earlier one is over
};

Played played(const Json& list) {
  Setup setup = llama({dp(4, 1 << 12), tp(2)}, 1);
  if (!list.empty()) setup.plan.push_back(directives(list));
  const Experiment e = experiment(setup);
  const Prediction prediction = mw::predict(*e.plan, two_links(), 0, /*traced=*/true);
  Played found;
  found.step = prediction.step_seconds;
  double over = 0;
  REQUIRE(prediction.instructions.size() == 1);
  for (const InstructionTime& time : prediction.instructions[0]) {
    const bool transfer = time.kind == InstructionTime::Kind::transfer &&
                          e.plan->programs[0].segments[time.segment].kind != SegmentKind::finish;
    if (!transfer) continue;
    found.beside = found.beside || time.start < over - 1e-12;
    over = std::max(over, time.end);
  }
  return found;
}

}  // namespace

TEST_CASE("One stream for two links puts their transfers one behind the other") {
  const Json every = {{"code", "start"}, {"axis", {"dp", "tp"}}};
  const Played own = played(Json::array());
  const Played one = played({{"stream", every, "one"}});
  const Played two =
      played({{"stream", {{"axis", "dp"}}, "background"}, {"stream", {{"axis", "tp"}}, "model"}});
  CHECK(own.beside);
  CHECK_FALSE(one.beside);
  CHECK(two.beside);
  CHECK(one.step > 1.02 * own.step);
  CHECK(two.step == Approx(own.step));
}
