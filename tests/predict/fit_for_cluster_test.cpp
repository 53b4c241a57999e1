// Plans that are made to fit a limit count what the device takes that they are for, not this
// machine.
#include <catch2/catch.hpp>

#include "clusters.h"
#include "predict/cluster_machine.h"
#include "predict/fit.h"
#include "predict/prediction.h"
#include "setups.h"

using namespace mw;
using namespace mw::test;

namespace {

// Each op takes far more than any kernel of a CPU does here.
class Wasteful final : public DeviceScratch {
 public:
  std::int64_t workspace(const Cost& cost) const override {
    return static_cast<std::int64_t>(cost.bytes) << 8;
  }
};

PlanRequest request_of(std::vector<StrategyChoice> plan) {
  PlanRequest request = experiment(llama(std::move(plan))).plan->request;
  request.scratch = std::make_shared<Wasteful>();
  request.kept_by_libraries = 12345;
  return request;
}

std::int64_t on_device(const Plan& plan, const PlanRequest& request) {
  std::int64_t peak = 0;
  for (const Program& program : plan.programs) {
    for (const RankClass& kind : rank_classes(program)) {
      const RankView rank(program, kind.at, 0, request.scratch.get());
      peak = std::max(peak, forecast_memory(rank).peak);
    }
  }
  return peak + request.kept_by_libraries;
}

}  // namespace

TEST_CASE("The largest microbatch that fits is the device's") {
  PlanRequest request = request_of({dp(2)});
  request.microbatch = 2;
  Problems problems;
  const auto of_two = make_plan(request, problems);
  REQUIRE(of_two);
  const std::int64_t limit = on_device(*of_two, request);
  CHECK(limit == highest_peak(*of_two));
  CHECK(limit > highest_peak(of_two->programs, nullptr) + 12345);
  const auto fits = fit_microbatch(request, limit, problems);
  REQUIRE(fits);
  CHECK(fits->microbatch == 2);
  const auto below = fit_microbatch(request, limit - 1, problems);
  REQUIRE(below);
  CHECK(below->microbatch == 1);
}

TEST_CASE("Recompute that fits is the device's") {
  PlanRequest request = request_of({dp(2)});
  Problems problems;
  const auto all = make_plan(request, problems);
  REQUIRE(all);
  const std::int64_t limit = on_device(*all, request);
  request.recompute.kind = RecomputePolicy::Kind::fit;
  request.recompute.fit = limit;
  request.recompute.search = fit_recompute;
  const auto fits = make_plan(request, problems);
  REQUIRE(fits);
  CHECK(on_device(*fits, request) == limit);
  request.recompute.fit = limit - 1;
  const auto below = make_plan(request, problems);
  REQUIRE(below);
  CHECK(on_device(*below, request) < limit);
}

TEST_CASE("Buffers for all rows count where the device's kernels have them") {
  Setup setup = llama({dp(2)});
  setup.sequence = 512;
  setup.options["vocab"] = 1024;
  const Experiment e = experiment(setup);
  const Program& program = e.plan->programs.front();
  const FlashScratch whole(true), chunks(false);
  const RankView on_whole(program, program.first(), 0, &whole),
      on_chunks(program, program.first(), 0, &chunks), here(program, program.first());
  bool found = false;
  for (std::size_t n = 0; n < program.graph->ops().size(); ++n) {
    const int op = static_cast<int>(n);
    if (program.graph->ops()[n].kind() != "ce_stats") continue;
    found = true;
    const Cost& cost = here.cost(op, Piece::forward);
    REQUIRE(cost.accelerator_workspace.has_value());
    REQUIRE(cost.workspace.has_value());
    CHECK(*cost.accelerator_workspace > 4 * *cost.workspace);
    CHECK(on_whole.workspace(op, Piece::forward).bytes == *cost.accelerator_workspace);
    CHECK(on_chunks.workspace(op, Piece::forward).bytes == *cost.workspace);
    CHECK(here.workspace(op, Piece::forward).bytes == *cost.workspace);
  }
  CHECK(found);
  CHECK(highest_peak(e.plan->programs, &whole) > highest_peak(e.plan->programs, &chunks));
}
