// Whether losses are another cell's: rounding that grows is no fault, a leap is one, and early
// almost nothing may differ.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "app/sweep/judge.h"

using namespace mw;

namespace {

// Losses whose relative differences from a reference of ones are these.
Json judged(const std::vector<double>& differences, const LossBound& bound) {
  Json own = {{"losses", Json::array()}}, reference = own;
  for (const double d : differences) {
    own["losses"].push_back(std::isnan(d) ? Json() : Json(1 + d));
    reference["losses"].push_back(1.0);
  }
  judge(own, "dp(2)", &reference, "", bound);
  return own;
}

// From 1e-7 in the first ten steps on, `growth` times as much each step, to a tenth at most.
std::vector<double> growing(double growth, int steps) {
  std::vector<double> list(10, 1e-7);
  while (static_cast<int>(list.size()) < steps) list.push_back(std::min(0.1, growth * list.back()));
  return list;
}

}  // namespace

TEST_CASE("cells run in rounds of all mixes, in an order that follows from a seed") {
  std::vector<Cell> cells;
  for (const char* plan : {"a", "b", "c", "d"}) {
    for (const char* seed : {"1", "2", "3"}) {
      Cell& cell = cells.emplace_back();
      cell.values = {{"plan", plan, {}, true}, {"seed", seed, {}, false}};
    }
  }
  const std::vector<std::size_t> order = interleaved(cells, 1);
  CHECK(interleaved(cells, 1) == order);
  CHECK(interleaved(cells, 2) != order);
  REQUIRE(order.size() == cells.size());
  for (std::size_t round = 0; round < 3; ++round) {
    std::vector<std::size_t> mixes;
    for (std::size_t k = 0; k < 4; ++k) mixes.push_back(order[4 * round + k] / 3);
    std::sort(mixes.begin(), mixes.end());
    CHECK(mixes == std::vector<std::size_t>{0, 1, 2, 3});
  }
  std::vector<std::size_t> all = order;
  std::sort(all.begin(), all.end());
  CHECK(interleaved(cells, 0) == all);
}

TEST_CASE("rounding that grows little by little is no fault") {
  const LossBound fp32 = loss_bound("fp32");
  const Json calm = judged(std::vector<double>(300, 9e-6), fp32);
  CHECK(calm["status"] == "done");
  CHECK(calm["reason"].is_null());
  const Json hot = judged(growing(1.5, 300), fp32);
  CHECK(hot["status"] == "done");
  CHECK(hot["same_loss_as"]["difference"].get<double>() == Approx(0.1));
  CHECK(hot["reason"].get<std::string>().find("grown little by little from 1e-07") !=
        std::string::npos);
}

TEST_CASE("a run's own reason stays, however often it is judged") {
  Json own = {{"losses", {1.5}}, {"reason", "stopped by observe after step 0"}};
  const Json reference = {{"losses", {1.0}}};
  for (int n = 0; n < 2; ++n) {
    judge(own, "dp(2)", &reference, "", loss_bound("fp32"));
    CHECK(own["reason"].get<std::string>().find(
              "stopped by observe after step 0; trains differently: the loss of step 0") == 0);
  }
  forget_judgement(own);
  CHECK(own["reason"] == "stopped by observe after step 0");
  CHECK(own["status"] == "done");
  judge(own, "dp(2)", &own, "", loss_bound("fp32"));
  CHECK(own["reason"] == "stopped by observe after step 0");
}

TEST_CASE("what is wrong is found") {
  const LossBound fp32 = loss_bound("fp32");
  SECTION("early, however little") {
    std::vector<double> drift;  // a decay that is left out: a little more each step
    for (int s = 0; s < 100; ++s) drift.push_back(3e-6 * s);
    const Json found = judged(drift, fp32);
    CHECK(found["status"] == "failed");
    CHECK(found["reason"].get<std::string>().find("step 4 ") != std::string::npos);
  }
  SECTION("a leap later") {
    std::vector<double> leap(100, 1e-7);
    for (int s = 50; s < 100; ++s) leap[s] = 2e-3;
    CHECK(judged(leap, fp32)["status"] == "failed");
    leap = growing(1.5, 20);  // and one from what has grown
    leap.push_back(0.05);
    CHECK(judged(leap, fp32)["status"] == "failed");
  }
  SECTION("no number") {
    std::vector<double> list = growing(1.5, 60);
    list.back() = std::nan("");
    CHECK(judged(list, fp32)["status"] == "failed");
  }
}

TEST_CASE("a factor in a gradient that losses hide shows in its first norm") {
  const auto with_norms = [](double norm, const LossBound& bound) {
    Json own = {{"losses", {5.5, 5.4}}, {"grad_norms", {norm, 9.0}}};
    const Json reference = {{"losses", {5.5, 5.4}}, {"grad_norms", {2.0, 3.0}}};
    judge(own, "dp(2)", &reference, "", bound);
    return own;
  };
  const LossBound fp32 = loss_bound("fp32");
  CHECK(with_norms(2.0 * (1 + 1e-6), fp32)["status"] == "done");  // later ones may differ
  const Json found = with_norms(2.0 * (1 + 1e-3), fp32);
  CHECK(found["status"] == "failed");
  CHECK(found["same_loss_as"]["norm_difference"].get<double>() == Approx(1e-3));
  CHECK(found["reason"].get<std::string>().find("2.002 and that of dp(2) has 2,") !=
        std::string::npos);
  CHECK(with_norms(4.0, {1e-5, 1e-5})["status"] == "done");   // a tolerance is one of losses
  CHECK(with_norms(std::nan(""), fp32)["status"] == "done");  // left out by the loss scale
}

TEST_CASE("a tolerance that is given holds for every step") {
  const LossBound given{1e-3, 1e-3};
  CHECK(judged({9e-4, 9e-4}, given)["status"] == "done");
  CHECK(judged(growing(1.5, 300), given)["status"] == "failed");
}

TEST_CASE("the MFU of a cell that ran is the measured one") {
  std::vector<Cell> cells(1);
  const std::vector<Json> rows = {{{"status", "done"},
                                   {"losses", {5.5}},
                                   {"tokens_per_second", 1000.0},
                                   {"mfu", 0.25},
                                   {"predicted", {{"mfu", 0.5}, {"step_seconds", 1.0}}}}};
  CHECK(runs_of({}, cells, rows).cells[0].mfu == 0.25);
}
