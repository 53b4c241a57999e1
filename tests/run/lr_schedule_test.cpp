// Learning-rate schedules: values at every part of a run, and what is refused.
#include <catch2/catch.hpp>

#include <cmath>
#include <thread>
#include <vector>

#include "script/in_run.h"
#include "support/problems.h"
#include "support/registered.h"
using mw::Json;

namespace {

mw::LrSchedule make(const std::string& kind, const Json& given, mw::LrContext context,
                    mw::Problems& problems) {
  auto rate = mw::test::made_at<mw::LearningRate>("schedule", kind, given, problems, context);
  if (rate == nullptr) return nullptr;
  return [rate](std::int64_t step) { return rate->at(step); };
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

TEST_CASE("a run that is shorter than its warm-up ends inside it") {
  mw::Problems problems;
  const auto lr = make("cosine", {{"warmup", 10}}, {1.0, 5}, problems);
  REQUIRE(problems.empty());
  for (int step = 0; step < 5; ++step) CHECK(lr(step) == Approx((step + 1) / 10.0));
  CHECK_FALSE(make("cosine", {{"warmup", -1}}, {1.0, 5}, problems));
}

TEST_CASE("impossible schedules are refused, all problems at once") {
  mw::Problems problems;
  CHECK_FALSE(make("cosine", {{"warmup", 50}, {"total", 40}, {"min", 0.5}}, {1e-3, 40}, problems));
  CHECK(mw::test::codes(problems) == "option.range schedule.warmup; option.range schedule.min");
}

TEST_CASE("a function's result is checked") {
  const auto lr = mw::checked_lr_schedule([](std::int64_t step) { return step == 2 ? NAN : 0.1; });
  CHECK(lr(1) == 0.1);
  CHECK(mw::test::thrown([&] { lr(2); }) == "function.result schedule");
  const auto falling = mw::checked_lr_schedule([](std::int64_t) { return -1.0; });
  CHECK(mw::test::thrown([&] { falling(7); }) == "function.result schedule");
}

TEST_CASE("a function with a state gives every rank the same rate for a step") {
  constexpr int ranks = 4, steps = 200;
  int calls = 0;  // unguarded on purpose: the schedule lets one caller in at a time
  const auto lr = mw::checked_lr_schedule([&](std::int64_t) { return ++calls; });
  std::vector<std::vector<double>> seen(ranks);
  std::vector<std::thread> threads;
  for (std::vector<double>& own : seen) {
    threads.emplace_back([&] {
      for (int step = 0; step < steps; ++step) own.push_back(lr(step));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(calls == steps);
  for (const auto& own : seen) CHECK(own == seen.front());
}
