// Requests and the numbers that the tests ask schedules for.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/schedule.h"
#include "support/problems.h"
#include "support/registered.h"

namespace mw {

inline ScheduleRequest request_of(int stages, int chunks, int microbatches) {
  ScheduleRequest request;
  request.stages = stages;
  request.chunks = chunks;
  request.microbatches = microbatches;
  return request;
}

// Those of plugins/pp, loaded as users' are, in order.
inline const std::vector<std::shared_ptr<const Scheduler>>& schedulers() {
  static const auto all = [] {
    test::registry().plugin("pp");
    std::vector<std::shared_ptr<const Scheduler>> made;
    for (const Registration* one : test::registry().list(Kind::scheduler))
      made.push_back(mw::make<Scheduler>(*one, Values()));
    return made;
  }();
  return all;
}

inline const Scheduler& scheduler(const std::string& name) {
  const auto found = std::find_if(schedulers().begin(), schedulers().end(),
                                  [&](const auto& one) { return one->name() == name; });
  REQUIRE(found != schedulers().end());
  return **found;
}

// With the scheduler's own number of chunks where it has one.
inline ScheduleRequest request_for(const std::string& name, int stages, int microbatches) {
  return request_of(stages, std::max(1, scheduler(name).fixed_chunks()), microbatches);
}

inline Schedule made(const std::string& name, const ScheduleRequest& request) {
  return scheduler(name).make(request);
}

// The codes and where: "schedule.order [2][1]" is the second stage's first action.
inline std::string faults(const Schedule& schedule, const ScheduleRequest& request) {
  Problems problems;
  check(schedule, request, problems);
  return test::codes(problems);
}

inline double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

// The most F's of a stage not yet followed by B or I.
inline int most_in_flight(const std::vector<Action>& actions) {
  int held = 0, most = 0;
  for (const Action& action : actions) {
    if (action.work == Work::forward) most = std::max(most, ++held);
    if (action.work == Work::backward || action.work == Work::dgrad) --held;
  }
  return most;
}

}  // namespace mw
