// Ranks as threads: how many there can be, and what each of them starts with.
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/scalar_type.h"

#include <catch2/catch.hpp>

#include <map>
#include <mutex>

#include "support/problems.h"
#include "support/setup.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;

TEST_CASE("More ranks than a process can run are refused before one starts") {
  Setup setup;
  setup.options["heads"] = 24;
  setup.options["kv_heads"] = 24;
  setup.plan = {dp(24), tp(24)};
  setup.batch = 24;
  const Experiment e = experiment(setup);
  bool started = false;
  CHECK(thrown([&] {
          with_ranks(e, *e.plan, nullptr, [&](RankRun&, Ledger&) { started = true; });
        }) == "plan.ranks plan");
  CHECK_FALSE(started);
  CHECK(thrown([&] { train(e, nullptr, [&](const StepReport&) { started = true; }); }) ==
        "plan.ranks plan");
  CHECK(thrown([&] { verify(e); }) == "plan.ranks plan");
  CHECK_FALSE(started);
}

TEST_CASE("Every rank's executor is of the plan's precision and holds its part of the weights") {
  Setup setup;
  setup.plan = {dp(2), tp(2)};
  setup.precision = GENERATE(Precision::fp32, Precision::fp64);
  const Experiment e = experiment(setup);
  std::mutex mutex;
  std::map<int, at::ScalarType> types;
  std::map<int, double> norms;
  with_ranks(e, *e.plan, nullptr, [&](RankRun& executor, Ledger& ledger) {
    double squares = 0;
    for (std::size_t p = 0; p < executor.program().parameters.size(); ++p) {
      const double norm =
          at::linalg_vector_norm(executor.parameter(static_cast<int>(p)), 2).item<double>();
      squares += norm * norm;
    }
    const std::lock_guard lock(mutex);
    types[executor.rank()] = scalar_type(executor.program().dtype);
    norms[executor.rank()] = squares;
    if (ledger.memory(Category::parameters).bytes == 0) types.clear();
  });
  REQUIRE(types.size() == 4);
  for (const auto& [rank, type] : types) {
    CHECK(type == (setup.precision == Precision::fp64 ? at::kDouble : at::kFloat));
  }
  CHECK(norms[0] > 0);
  CHECK(norms[0] == norms[2]);  // copies of dp
  CHECK(norms[1] == norms[3]);
  CHECK(norms[0] != norms[1]);  // parts of tp
}

TEST_CASE("A data value that nothing can fill is an error that names it") {
  Experiment e = experiment({});
  auto plan = std::make_shared<Plan>(*e.plan);
  int renamed = 0;
  for (Slot& slot : plan->programs.front().slots) {
    if (slot.name != "labels") continue;
    slot.name = "speech";
    ++renamed;
  }
  REQUIRE(renamed == 1);
  e.plan = plan;
  CHECK(thrown([&] { train(e, nullptr, {}); }) == "run.internal");
}

TEST_CASE("A verification that is stopped has no verdict") {
  Setup setup;
  setup.plan = {dp(2)};
  Experiment e = experiment(setup);
  std::atomic<bool> stop = false;
  std::atomic<int> asked = 0;
  e.schedule = [&](std::int64_t) {
    if (++asked == 4) stop = true;  // three of the one rank, then the plan's
    return 1e-3;
  };
  const VerifyOutcome outcome = verify(e, 3, 1e-10, &stop);
  CHECK(outcome.interrupted);
  CHECK_FALSE(outcome.equal);
  CHECK(asked <= 5);  // each of two ranks made one step
  CHECK_THAT(describe(outcome, "dp(2)"), Catch::Contains("interrupted"));
  stop = false;
  CHECK_FALSE(verify(e, 3, 1e-10, &stop).interrupted);
}
