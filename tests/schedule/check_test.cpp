// Each kind of fault, made in a good schedule, is found and named.
#include "schedules.h"

using namespace mw;

namespace {

// 0F0 0F1 0B0 0F2 0B1 0B2 / 1F0 1B0 1F1 1B1 1F2 1B2
const ScheduleRequest small = request_of(2, 1, 3);
Schedule good() {
  return made("1f1b", small);
}

}  // namespace

TEST_CASE("A work that is missing") {
  auto schedule = good();
  schedule.order[1].erase(schedule.order[1].begin() + 3);
  CHECK(faults(schedule, small) == "schedule.missing [2]");

  schedule = good();
  schedule.order[0].erase(schedule.order[0].begin() + 3);
  CHECK(faults(schedule, small) == "schedule.missing [1]");

  auto split = made("zb-h1", small);
  auto& last = split.order[1];
  const auto wgrad = std::find(last.begin(), last.end(), Action{1, Work::wgrad, 2});
  last.erase(wgrad);
  CHECK(faults(split, small) == "schedule.missing [2]");

  split = made("zb-h1", small);
  auto& first = split.order[0];
  first.erase(std::find(first.begin(), first.end(), Action{0, Work::dgrad, 1}));
  CHECK(faults(split, small) == "schedule.missing [1]");
}

TEST_CASE("A work that is done twice") {
  auto schedule = good();
  schedule.order[0].insert(schedule.order[0].begin() + 4, schedule.order[0][1]);
  CHECK(faults(schedule, small) == "schedule.doubled [1][5]");

  schedule = good();
  schedule.order[1].push_back({1, Work::wgrad, 0});
  CHECK(faults(schedule, small) == "schedule.doubled [2][7]");
}

TEST_CASE("A work on the wrong stage, or of no stage") {
  auto schedule = good();
  schedule.order[1].push_back(schedule.order[0].back());
  schedule.order[0].pop_back();
  CHECK(faults(schedule, small) == "schedule.home [2][7]");

  schedule = good();
  schedule.order[1][0].vstage = 2;
  CHECK(faults(schedule, small) == "schedule.range [2][1]; schedule.missing [2]");
  schedule.order[1][0] = {1, Work::forward, 3};
  CHECK(faults(schedule, small) == "schedule.range [2][1]; schedule.missing [2]");
  schedule.stage_of[1] = 2;
  CHECK(faults(schedule, small) == "schedule.stages");
}

TEST_CASE("A work before what it needs on the same stage") {
  auto schedule = good();
  std::swap(schedule.order[1][0], schedule.order[1][1]);
  CHECK(faults(schedule, small) == "schedule.order [2][1]");

  // Between chunks of one stage.
  const auto looped = request_of(1, 2, 1);
  CHECK(faults(schedule_from_text("1F0 0F0 1B0 0B0", "own"), looped) == "schedule.order [1][1]");
  CHECK(faults(schedule_from_text("0F0 1F0 0I0 1I0 0W0 1W0", "own"), looped) ==
        "schedule.order [1][3]");
  CHECK(faults(schedule_from_text("0F0 1F0 1W0 1I0 0B0", "own"), looped) ==
        "schedule.order [1][3]");
}

TEST_CASE("Stages that wait for each other: the cycle is named") {
  auto schedule = good();
  // Stage 0 wants B0 before it sends F1; stage 1 wants F1 before it does B0.
  std::swap(schedule.order[0][1], schedule.order[0][2]);
  std::swap(schedule.order[1][1], schedule.order[1][2]);
  CHECK(faults(schedule, small) == "schedule.deadlock [1]");
  CHECK(test::thrown([&] { simulate(schedule, small); }) == "schedule.deadlock");

  // Stages that only wait for the cycle are no part of it.
  const auto three = request_of(3, 1, 2);
  const auto waiting =
      schedule_from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n2F0 2F1 2B0 2B1", "own");
  CHECK(faults(waiting, three) == "schedule.deadlock [2]");
}

TEST_CASE("Activations above the limit") {
  auto request = request_of(2, 1, 3);
  request.bytes = {{10, 4}};
  request.memory_limit = 20;
  CHECK(faults(good(), request) == "none");
  request.memory_limit = 19;
  CHECK(faults(good(), request) == "schedule.memory [1][2]");
  // I leaves what W needs: 0F0 0I0 0F1 holds 4 + 10.
  const auto split = schedule_from_text("0F0 0I0 0F1 0I1 0W0 0W1", "own");
  auto one = request_of(1, 1, 2);
  one.bytes = request.bytes;
  one.memory_limit = 14;
  CHECK(faults(split, one) == "none");
  one.memory_limit = 13;
  CHECK(faults(split, one) == "schedule.memory [1][3]");
}

TEST_CASE("A schedule for other numbers than asked for") {
  CHECK(faults(good(), request_of(3, 1, 3)) == "schedule.stages");
  CHECK(faults(good(), request_of(2, 1, 4)) == "schedule.microbatches");
}

TEST_CASE("Of a kind only a few are told, and how many there are") {
  auto schedule = made("gpipe", request_of(2, 1, 20));
  schedule.order[1].clear();
  Problems problems;
  check(schedule, request_of(2, 1, 20), problems);
  REQUIRE(problems.list().size() == 4);
  for (const Problem& problem : problems.list()) CHECK(problem.stage == Stage::plan);
  CHECK(test::codes(problems) ==
        "schedule.missing [2]; schedule.missing [2]; schedule.missing [2]; schedule.missing");
}
