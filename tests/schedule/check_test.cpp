// Each kind of fault, made in a good schedule, is found and named.
#include "schedules.h"

using namespace mw;
using Catch::Contains;

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
  CHECK_THAT(faults(schedule, small), Contains("stage 1 never does 1B1, nor its I and W"));

  schedule = good();
  schedule.order[0].erase(schedule.order[0].begin() + 3);
  CHECK_THAT(faults(schedule, small), Contains("stage 0 never does 0F2"));

  auto split = made("zb-h1", small);
  auto& last = split.order[1];
  const auto wgrad = std::find(last.begin(), last.end(), Action{1, Work::wgrad, 2});
  const auto dgrad = std::find(last.begin(), last.end(), Action{1, Work::dgrad, 2});
  const auto step = std::to_string(dgrad - last.begin());
  last.erase(wgrad);
  CHECK_THAT(faults(split, small),
             Contains("stage 1 never does 1W2, though it does stage 1, step " + step + ", 1I2"));

  split = made("zb-h1", small);
  auto& first = split.order[0];
  first.erase(std::find(first.begin(), first.end(), Action{0, Work::dgrad, 1}));
  CHECK_THAT(faults(split, small),
             Contains("stage 0 never does 0I1, which stage 0, step") && Contains("0W1 needs"));
}

TEST_CASE("A work that is done twice") {
  auto schedule = good();
  schedule.order[0].insert(schedule.order[0].begin() + 4, schedule.order[0][1]);
  CHECK_THAT(faults(schedule, small),
             Contains("stage 0, step 4, 0F1: done already by stage 0, step 1, 0F1"));

  schedule = good();
  schedule.order[1].push_back({1, Work::wgrad, 0});
  CHECK_THAT(faults(schedule, small),
             Contains("stage 1, step 6, 1W0: done already by stage 1, step 1, 1B0"));
}

TEST_CASE("A work on the wrong stage, or of no stage") {
  auto schedule = good();
  schedule.order[1].push_back(schedule.order[0].back());
  schedule.order[0].pop_back();
  CHECK_THAT(faults(schedule, small),
             Contains("stage 1, step 6, 0B2: virtual stage 0 lies on stage 0"));

  schedule = good();
  schedule.order[1][0].vstage = 2;
  CHECK_THAT(faults(schedule, small), Contains("stage 1, step 0, 2F0: there is no such"));
  schedule.order[1][0] = {1, Work::forward, 3};
  CHECK_THAT(faults(schedule, small), Contains("microbatches 0 to 2"));
  schedule.stage_of[1] = 2;
  CHECK_THAT(faults(schedule, small),
             Contains("virtual stage 1 lies on stage 2; stages are 0 to 1"));
}

TEST_CASE("A work before what it needs on the same stage") {
  auto schedule = good();
  std::swap(schedule.order[1][0], schedule.order[1][1]);
  CHECK_THAT(faults(schedule, small),
             Contains("stage 1, step 0, 1B0: comes before stage 1, step 1, 1F0, which it needs"));

  // Between chunks of one stage.
  const auto looped = request_of(1, 2, 1);
  CHECK_THAT(faults(schedule_from_text("1F0 0F0 1B0 0B0", "own"), looped),
             Contains("stage 0, step 0, 1F0: comes before stage 0, step 1, 0F0"));
  CHECK_THAT(faults(schedule_from_text("0F0 1F0 0I0 1I0 0W0 1W0", "own"), looped),
             Contains("stage 0, step 2, 0I0: comes before stage 0, step 3, 1I0"));
  CHECK_THAT(faults(schedule_from_text("0F0 1F0 1W0 1I0 0B0", "own"), looped),
             Contains("stage 0, step 2, 1W0: comes before stage 0, step 3, 1I0"));
}

TEST_CASE("Stages that wait for each other: the cycle is named") {
  auto schedule = good();
  // Stage 0 wants B0 before it sends F1; stage 1 wants F1 before it does B0.
  std::swap(schedule.order[0][1], schedule.order[0][2]);
  std::swap(schedule.order[1][1], schedule.order[1][2]);
  CHECK_THAT(faults(schedule, small),
             Contains("deadlock: 2 stages wait for each other in a cycle: "
                      "stage 0, step 1, 0B0 waits for stage 1, step 2, 1B0; "
                      "stage 1, step 1, 1F1 waits for stage 0, step 2, 0F1"));
  CHECK_THROWS_WITH(simulate(schedule, small), Contains("waits for ever"));

  // Stages that only wait for the cycle are no part of it.
  const auto three = request_of(3, 1, 2);
  const auto waiting =
      schedule_from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n2F0 2F1 2B0 2B1", "own");
  const auto text = faults(waiting, three);
  CHECK_THAT(text,
             Contains("2 stages") &&
                 Contains("stage 1, step 1, 1B0 waits for stage 2, step 2, 2B0; stage 2, step "
                          "1, 2F1 waits for stage 1, step 2, 1F1") &&
                 !Contains("stage 0"));
}

TEST_CASE("Activations above the limit") {
  auto request = request_of(2, 1, 3);
  request.bytes = {{10, 4}};
  request.memory_limit = 20;
  CHECK(faults(good(), request) == "");
  request.memory_limit = 19;
  CHECK_THAT(faults(good(), request),
             Contains("stage 0, step 1, 0F1: takes the activations to 20, above the limit of 19"));
  // I leaves what W needs: 0F0 0I0 0F1 holds 4 + 10.
  const auto split = schedule_from_text("0F0 0I0 0F1 0I1 0W0 0W1", "own");
  auto one = request_of(1, 1, 2);
  one.bytes = request.bytes;
  one.memory_limit = 14;
  CHECK(faults(split, one) == "");
  one.memory_limit = 13;
  CHECK_THAT(faults(split, one), Contains("stage 0, step 2, 0F1: takes the activations to 14"));
}

TEST_CASE("A schedule for other numbers than asked for") {
  CHECK_THAT(faults(good(), request_of(3, 1, 3)), Contains("is for 2 stages, but there are 3"));
  CHECK_THAT(faults(good(), request_of(2, 1, 4)),
             Contains("is for 3 microbatches, but a step has 4"));
}

TEST_CASE("Of a kind only a few are told, and how many there are") {
  auto schedule = made("gpipe", request_of(2, 1, 20));
  schedule.order[1].clear();
  Problems problems;
  check(schedule, request_of(2, 1, 20), problems);
  REQUIRE(problems.list().size() == 4);
  for (const Problem& problem : problems.list()) CHECK(problem.stage == Stage::plan);
  CHECK(problems.list().back().message == "... and 37 more like the last");
}
