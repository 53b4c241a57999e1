// Memory limits where stages differ: what is kept to is whole, whatever the sizes.
#include <catch2/catch.hpp>

#include "schedules.h"

using namespace mw;

TEST_CASE("A heavy first stage under a limit gives a whole schedule or a refusal") {
  const std::string name = GENERATE(as<std::string>{}, "zb-h1", "zb-h2", "zbv", "v-half", "v-min");
  const Scheduler& scheduler = mw::scheduler(name);
  int kept = 0;
  for (const double limit : {2.0, 3.0, 4.0, 5.0, 6.0, 9.0}) {
    for (const double heavy : {1.5, 2.0, 4.0}) {
      for (const int m : {1, 4, 7}) {
        ScheduleRequest request;
        request.stages = 3;
        request.chunks = scheduler.fixed_chunks();
        request.microbatches = m;
        request.memory_limit = limit;
        request.bytes.assign(3 * request.chunks, {1, 0.5});
        request.bytes[0] = {heavy, 1};
        request.times.assign(3 * request.chunks, {1, 1, 1, 0});
        request.times[0] = {2, 1, 2, 0};
        INFO(name << " limit " << limit << " first " << heavy << " microbatches " << m);
        try {
          const Schedule schedule = scheduler.make(request);
          Problems problems;
          check(schedule, request, problems);
          CHECK(problems.empty());
          ++kept;
        } catch (const Error& error) {
          CHECK(test::codes(error.problems()) == "schedule.memory memory");
        }
      }
    }
  }
  CHECK(kept > 20);
}
