#include "engine/lr_schedule.h"

#include <catch2/catch.hpp>

#include <cmath>

using mw::Json;

namespace {

mw::LrSchedule make(const std::string& kind, const Json& given, mw::LrContext context,
                    mw::Problems& problems) {
  const mw::LrScheduleKind& schedule = *mw::find_lr_schedule_kind(kind);
  const mw::Values values = schedule.options().read(given, "schedule", problems);
  return problems.empty() ? schedule.make(values, "schedule", context, problems) : nullptr;
}

}  // namespace

TEST_CASE("constant is the optimizer's rate") {
  mw::Problems problems;
  const auto lr = make("constant", Json::object(), {3e-4, 10}, problems);
  REQUIRE(problems.empty());
  CHECK(lr(0) == 3e-4);
  CHECK(lr(1000000) == 3e-4);
}

TEST_CASE("cosine warms up linearly, falls along half a cosine and stays at min") {
  mw::Problems problems;
  const auto lr = make("cosine", {{"warmup", 10}, {"min", 1e-5}}, {1e-3, 110}, problems);
  REQUIRE(problems.empty());
  CHECK(lr(0) == Approx(1e-4));
  CHECK(lr(4) == Approx(5e-4));
  CHECK(lr(9) == Approx(1e-3));
  CHECK(lr(10) == Approx(1e-3));
  CHECK(lr(60) == Approx((1e-3 + 1e-5) / 2));  // half way
  CHECK(lr(35) == Approx(1e-5 + (1e-3 - 1e-5) * (1 + std::sqrt(0.5)) / 2));
  CHECK(lr(109) > 1e-5);
  CHECK(lr(110) == 1e-5);
  CHECK(lr(5000) == 1e-5);
  for (int step = 10; step < 110; ++step) CHECK(lr(step + 1) < lr(step));
}

TEST_CASE("cosine without warm-up starts at lr, and total overrides the run's steps") {
  mw::Problems problems;
  const auto lr = make("cosine", {{"total", 20}}, {1.0, 1000}, problems);
  REQUIRE(problems.empty());
  CHECK(lr(0) == 1.0);
  CHECK(lr(10) == Approx(0.5));
  CHECK(lr(20) == 0.0);
}

TEST_CASE("a warm-up as long as the run never divides by zero") {
  mw::Problems problems;
  const auto lr = make("cosine", {{"warmup", 5}}, {1.0, 5}, problems);
  REQUIRE(problems.empty());
  CHECK(lr(4) == 1.0);
  CHECK(lr(5) == 0.0);
}

TEST_CASE("impossible schedules are refused, all problems at once") {
  mw::Problems problems;
  CHECK_FALSE(make("cosine", {{"warmup", 50}, {"min", 0.5}}, {1e-3, 40}, problems));
  REQUIRE(problems.list().size() == 2);
  CHECK_THAT(problems.list()[0].message,
             Catch::Contains("schedule.warmup") && Catch::Contains("50") && Catch::Contains("40"));
  CHECK_THAT(problems.list()[1].message,
             Catch::Contains("schedule.min") && Catch::Contains("0.001"));
}

TEST_CASE("a function's result is checked") {
  const auto lr = mw::checked_lr_schedule([](std::int64_t step) { return step == 2 ? NAN : 0.1; });
  CHECK(lr(1) == 0.1);
  CHECK_THROWS_WITH(lr(2), Catch::Contains("step 2"));
  CHECK_THROWS_WITH(mw::checked_lr_schedule([](std::int64_t) { return -1.0; })(7),
                    Catch::Contains("-1"));
}
