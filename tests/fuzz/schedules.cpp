// Schedules as text and as CSV: read, checked, timed, drawn and written.
#include "fuzz/readers.h"
#include "meshwright/schedule.h"

namespace mw::fuzz {
namespace {

void use_schedule(const Schedule& schedule) {
  must(schedule_from_text(to_text(schedule), "again").order == schedule.order,
       "a schedule as text reads back as another one");
  must(schedule_from_csv(to_csv(schedule), "again").joined == schedule.joined,
       "a schedule as CSV reads back with other groups");
  ScheduleRequest request;
  request.stages = schedule.stages();
  request.microbatches = schedule.microbatches;
  request.chunks = schedule.vstages() / schedule.stages();
  Problems problems;
  check(schedule, request, problems);
  problems.throw_if_any();
  const ScheduleTimeline timeline = simulate(schedule, request);
  must(timeline.makespan > 0, "a schedule takes no time");
  draw_text(schedule, timeline, 100, false);
  draw_svg(timeline.stages, {}, "title", "caption");
}

void read_schedule(Bytes input) {
  const std::string text = text_of(input);
  Problems problems;
  bool good = false;
  for (const auto read : {&schedule_from_text, &schedule_from_csv}) {
    try {
      use_schedule(read(text, "input"));
      good = true;
    } catch (const Error& error) {
      problems.add(error);
    }
  }
  if (!good) problems.throw_if_any();
}

const AddReader registered_schedules({"schedules", read_schedule, 4000});

}  // namespace
}  // namespace mw::fuzz
