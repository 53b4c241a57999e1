// Tensors that are saved, made again or sent to host memory, chosen one by one to fit a limit.
#include <catch2/catch.hpp>

#include "clusters.h"
#include "meshwright/engine/forecast.h"
#include "predict/cluster_machine.h"
#include "predict/fit.h"
#include "predict/prediction.h"
#include "setups.h"

using namespace mw;
using namespace mw::test;

namespace {

ClusterMachine a_link_of(double link) {
  Cluster c = round_cluster();
  c.network.nic = 1e10;
  c.host_bandwidth = 1e10;
  c.host_link = link;
  return {c, round_stack()};
}

PlanRequest request_on(const Machine& machine, std::vector<StrategyChoice> plan) {
  Setup setup = llama(std::move(plan), 4);
  setup.sequence = 128;
  PlanRequest request = experiment(setup).plan->request;
  request.scratch =
      std::shared_ptr<const DeviceScratch>(std::shared_ptr<void>(), machine.scratch());
  return request;
}

std::int64_t peak_of(const PlanRequest& request) {
  Problems problems;
  const auto plan = make_plan(request, problems);
  problems.throw_if_any();
  return highest_peak(*plan);
}

// What lies between keeping everything and making everything again.
std::int64_t limit_between(PlanRequest request, double share) {
  const std::int64_t most = peak_of(request);
  request.recompute.kind = RecomputePolicy::Kind::full;
  const std::int64_t least = peak_of(request);
  return least + static_cast<std::int64_t>(share * static_cast<double>(most - least));
}

std::shared_ptr<const Plan> fitted(PlanRequest request, std::int64_t limit, bool offload) {
  request.recompute.kind = RecomputePolicy::Kind::fit;
  request.recompute.fit = limit;
  request.recompute.offload = offload;
  request.recompute.search = fit_recompute;
  Problems problems;
  auto plan = make_plan(request, problems);
  problems.throw_if_any();
  return plan;
}

}  // namespace

TEST_CASE("Some made again and some sent away is faster than either alone") {
  const ClusterMachine machine = a_link_of(2.5e9);
  const PlanRequest request = request_on(machine, {});
  const std::int64_t limit = limit_between(request, 0.6);
  const auto again = fitted(request, limit, false), mixed = fitted(request, limit, true);
  PlanRequest sent = request;
  sent.offload.kind = OffloadPolicy::Kind::full;
  sent.offload.prefetch = 1;
  Problems problems;
  const auto away = make_plan(sent, problems);
  REQUIRE(away);
  CHECK(highest_peak(*mixed) <= limit);
  CHECK(mixed->request.offload.kind == OffloadPolicy::Kind::fixed);
  const double seconds = predict(*mixed, machine).step_seconds;
  INFO(mixed->notes.front());
  CHECK(seconds < predict(*again, machine).step_seconds);
  CHECK(seconds < predict(*away, machine).step_seconds);
  CHECK(highest_peak(*away) <= limit);
  const std::vector<bool>& made_again = mixed->request.recompute.set.ops;
  CHECK(std::count(made_again.begin(), made_again.end(), true) > 0);
}

TEST_CASE("A fast link carries all that does not fit, a slow one nothing") {
  for (const double link : {1e12, 1e6}) {
    const ClusterMachine machine = a_link_of(link);
    const PlanRequest request = request_on(machine, {});
    const auto plan = fitted(request, limit_between(request, 0.6), true);
    const std::vector<bool>& again = plan->request.recompute.set.ops;
    const bool fast = link > 1e9;
    CHECK((plan->request.offload.kind == OffloadPolicy::Kind::fixed) == fast);
    CHECK((std::count(again.begin(), again.end(), true) == 0) == fast);
    CHECK(plan->notes.front().starts_with("offload: nothing goes to host memory") == !fast);
  }
}

TEST_CASE("A stage whose memory suffices sends nothing away") {
  const ClusterMachine machine = a_link_of(1e12);
  PlanRequest request = request_on(machine, {pp(2, "1f1b", {2, 1})});
  const auto plan = fitted(request, limit_between(request, 0.6), true);
  REQUIRE(plan->request.offload.kind == OffloadPolicy::Kind::fixed);
  for (const std::string& name : plan->request.offload.set.tensors)
    CHECK(name.rfind("layers.2.", 0) != 0);
}

TEST_CASE("A plan that fits as it is sends nothing away, and says why") {
  const ClusterMachine machine = a_link_of(1e12);
  const PlanRequest request = request_on(machine, {});
  const auto plan = fitted(request, 2 * peak_of(request), true);
  CHECK(plan->request.offload.kind == OffloadPolicy::Kind::none);
  CHECK(plan->notes.front().find("no rank holds more without it") != std::string::npos);
}

TEST_CASE("What goes to host memory needs a device with a link") {
  const ClusterMachine machine = a_link_of(0);
  const PlanRequest request = request_on(machine, {});
  try {
    fitted(request, limit_between(request, 0.5), true);
    FAIL("it was planned");
  } catch (const Error& error) {
    CHECK(error.problems().front().code == "recompute.offload");
  }
}

TEST_CASE("What goes to host memory is chosen or said, not both") {
  const ClusterMachine machine = a_link_of(1e12);
  PlanRequest request = request_on(machine, {});
  const std::int64_t limit = limit_between(request, 0.5);
  request.offload.kind = OffloadPolicy::Kind::full;
  try {
    fitted(request, limit, true);
    FAIL("it was planned");
  } catch (const Error& error) {
    CHECK(error.problems().front().code == "option.conflict");
    CHECK(error.problems().front().key == "offload");
  }
}
