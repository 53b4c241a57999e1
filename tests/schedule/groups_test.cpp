// Groups of works: written, read, checked, timed, drawn, and made by schedulers that pair.
#include "schedules.h"

using namespace mw;
using Catch::Contains;

namespace {

// The scheduler with its option `pair`; null where it has none.
std::shared_ptr<const Scheduler> paired(const std::string& name, bool pair = true) {
  test::registry().plugin("pp");
  const Registration& found = test::registry().find(Kind::scheduler, name);
  for (const Option& option : found.options().list()) {
    if (option.name != "pair") continue;
    Problems problems;
    const Values values = found.options().read({{"pair", pair}}, "schedule", problems);
    problems.throw_if_any();
    return make<Scheduler>(found, values);
  }
  return nullptr;
}

int groups_of(const Schedule& schedule) {
  int count = 0;
  for (int s = 0; s < schedule.stages(); ++s)
    for (std::size_t k = 0; k < schedule.order[static_cast<std::size_t>(s)].size(); ++k)
      count += schedule.joins(s, k) && (k == 0 || !schedule.joins(s, k - 1)) ? 1 : 0;
  return count;
}

const std::vector<std::string> pairing = {"1f1b", "interleaved", "zb-h1", "zb-h2",
                                          "zbv",  "v-half",      "v-min", "dualpipev"};

}  // namespace

TEST_CASE("Groups are read from text and CSV, and written as they were", "[groups_test]") {
  const std::string text = "0F0 0F1+0B0 0B1\n", csv = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n";
  for (const Schedule& schedule :
       {schedule_from_text(text, "own"), schedule_from_csv(csv, "own")}) {
    CHECK(to_text(schedule) == text);
    CHECK(to_csv(schedule) == csv);
    CHECK(schedule.grouped());
    CHECK(schedule.group_end(0, 0) == 1);
    CHECK(schedule.group_end(0, 1) == 3);
    CHECK(faults(schedule, request_of(1, 1, 2)) == "none");
  }
  // Three works; each reader takes both forms.
  const std::string three = "0F0 0F1 0I0 0F2+0I1+0W0 0W1 0I2 0W2\n";
  CHECK(to_text(schedule_from_csv(to_csv(schedule_from_text(three, "own")), "own")) == three);
  CHECK(to_csv(schedule_from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1", "own")) == csv);
  for (const char* cell : {"0F1+", "+0B0", "0F1+x", "(0F1;0B0)OVERLAP_F_B+0F2"}) {
    CHECK(test::thrown([&] { schedule_from_text(std::string("0F0 ") + cell, "own"); }) ==
          "schedule.cell schedule[1][2]");
  }
}

TEST_CASE("A group's works need nothing of each other", "[groups_test]") {
  // In each of these a work needs another one of its group: of its own virtual stage, of another
  // chunk of the stage, or two works before it.
  CHECK(faults(schedule_from_text("0F0+0B0", "own"), request_of(1, 1, 1)) ==
        "schedule.group [1][2]");
  CHECK(faults(schedule_from_text("0F0 0I0+0W0", "own"), request_of(1, 1, 1)) ==
        "schedule.group [1][3]");
  CHECK(faults(schedule_from_text("0F0+1F0 1B0 0B0", "own"), request_of(1, 2, 1)) ==
        "schedule.group [1][2]");
  CHECK(faults(schedule_from_text("0F0 0F1+0I0+0W0 0B1", "own"), request_of(1, 1, 2)) ==
        "schedule.group [1][4]");
  // By way of another stage: B0 of stage 0 comes after its B on stage 1, which stands in one group
  // with what waits for stage 0's group.
  const auto crossed = schedule_from_text("0F0 0F1+0B0 0B1\n1F0 1F1+1B0 1B1", "own");
  CHECK(faults(crossed, request_of(2, 1, 2)) == "schedule.deadlock [1]");
  CHECK(test::thrown([&] { simulate(crossed, request_of(2, 1, 2)); }) == "schedule.deadlock");
  auto flat = crossed;
  flat.joined.clear();
  CHECK(faults(flat, request_of(2, 1, 2)) == "none");
  Problems problems;
  check(crossed, request_of(2, 1, 2), problems);
  REQUIRE(problems.list().size() == 1);
  CHECK_THAT(problems.list()[0].message,
             Contains("stage 0, step 2, 0B0 waits for stage 1, step 2, 1B0") &&
                 Contains("stage 1, step 1, 1F1 waits for stage 0, step 1, 0F1"));
  CHECK_THAT(problems.list()[0].hint, Contains("take a group apart"));

  auto many = flat;
  many.joined.resize(3);
  CHECK(faults(many, request_of(2, 1, 2)) == "schedule.group [3]");
}

TEST_CASE("A group holds what its works hold together", "[groups_test]") {
  auto request = request_of(1, 1, 3);
  request.bytes = {{10, 4}};
  request.memory_limit = 20;
  const auto schedule = schedule_from_text("0F0 0B0 0F1 0B1 0F2 0B2", "own");
  CHECK(faults(schedule, request) == "none");
  const auto grouped = schedule_from_text("0F0 0F1+0B0 0F2+0B1 0B2", "own");
  CHECK(faults(grouped, request) == "none");
  request.memory_limit = 19;
  CHECK(faults(grouped, request) == "schedule.memory [1][2]");
  // B first in the list frees nothing before the group is over.
  CHECK(faults(schedule_from_text("0F0 0B0+0F1 0F2+0B1 0B2", "own"), request) ==
        "schedule.memory [1][2]");
  const auto timeline = simulate(grouped, request);
  CHECK(timeline.bytes_peak == std::vector<double>{20});
  CHECK(timeline.microbatches_peak == std::vector<double>{2});
}

TEST_CASE("A group takes the sum of its works, or less", "[groups_test]") {
  auto request = request_of(1, 1, 2);
  request.times = {{2, 3, 1, 0}};
  const auto schedule = schedule_from_text("0F0 0F1+0B0 0B1", "own");
  CHECK(simulate(schedule, request).makespan == Approx(12));
  request.joint = 0.75;
  const auto timeline = simulate(schedule, request);
  CHECK(timeline.makespan == Approx(2 + 4.5 + 4));
  CHECK(timeline.busy[0] == Approx(10.5));
  CHECK(timeline.bubble == Approx(0).margin(1e-12));
  REQUIRE(timeline.stages[0].size() == 4);
  for (const int work : {1, 2}) {
    const TimedAction& timed = timeline.stages[0][static_cast<std::size_t>(work)];
    CHECK(timed.start == Approx(2));
    CHECK(timed.end == Approx(6.5));
    CHECK(timed.lane == work - 1);
    CHECK(timed.lanes == 2);
  }
  // A group begins when all of its works can: F2 of stage 0 could begin at 2, and its group waits
  // for B0 of stage 1, which ends at 4.
  auto two = request_of(2, 1, 3);
  const auto crossed =
      schedule_from_text("0F0 0F1 0F2+0B0 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2", "own");
  REQUIRE(faults(crossed, two) == "none");
  const auto waits = simulate(crossed, two);
  CHECK(waits.stages[0][2].start == Approx(4));
  CHECK(waits.stages[0][3].start == Approx(4));
  CHECK(waits.stages[0][3].end == Approx(7));
}

TEST_CASE("What schedulers pair passes the check at every size, flat as well", "[groups_test]") {
  for (const std::string& name : pairing) {
    const auto scheduler = paired(name);
    REQUIRE(scheduler != nullptr);
    for (const int p : {1, 2, 3, 4, 8}) {
      for (const int chunks : {1, 2, 3}) {
        if (scheduler->fixed_chunks() > 0 && chunks != scheduler->fixed_chunks()) continue;
        for (const int m : {1, 2, 3, 5, 8, 11, 24}) {
          INFO(name << " p " << p << " chunks " << chunks << " m " << m);
          const auto request = request_of(p, chunks, m);
          auto schedule = scheduler->make(request);
          CHECK(faults(schedule, request) == "none");
          if (m >= 2 * p * chunks) CHECK(groups_of(schedule) > 0);
          CHECK(to_text(schedule_from_text(to_text(schedule), "back")) == to_text(schedule));
          CHECK(to_text(schedule_from_csv(to_csv(schedule), "back")) == to_text(schedule));
          schedule.joined.clear();
          CHECK(faults(schedule, request) == "none");
          CHECK(to_text(paired(name, false)->make(request)).find('+') == std::string::npos);
        }
      }
    }
  }
  for (const char* none : {"gpipe", "looped-bfs"}) CHECK(paired(none) == nullptr);
}

TEST_CASE("Pairs cost no time by themselves, and what they hide shortens the step",
          "[groups_test]") {
  for (const int p : {2, 4, 8}) {
    const int m = 4 * p;
    INFO("p " << p);
    // Pairs of 1F1B add to its makespan at most what the first pair of each stage but the last
    // waits for the later of its two works.
    auto one = request_of(p, 1, m);
    const auto schedule = paired("1f1b")->make(one);
    CHECK(groups_of(schedule) == p * (m - p));
    CHECK(most_in_flight(schedule.order[0]) == std::min(m, 2 * p));
    const double plain = simulate(made("1f1b", one), one).makespan;
    CHECK(simulate(schedule, one).makespan <= plain + (p - 1) * 2.0);
    one.joint = 2.0 / 3;
    CHECK(simulate(schedule, one).makespan < plain);

    const auto two = request_of(p, 2, m);
    const double apart = simulate(paired("dualpipev", false)->make(two), two).makespan;
    CHECK(simulate(paired("dualpipev")->make(two), two).makespan <= apart + 2.0 * p);
    CHECK(groups_of(paired("dualpipev")->make(two)) > p * m);
  }
  CHECK(to_text(paired("1f1b")->make(request_of(2, 1, 4))) ==
        "0F0 0F1 0F2 0F3+0B0 0B1 0B2 0B3\n1F0 1F1+1B0 1F2+1B1 1F3+1B2 1B3\n");
  CHECK_THAT(to_text(paired("zb-h1")->make(request_of(2, 1, 4))), Contains("0W0+0F2"));
}

TEST_CASE("The works of a group stand one below the other", "[groups_test]") {
  auto request = request_of(1, 1, 2);
  const auto schedule = schedule_from_text("0F0 0F1+0B0 0B1", "own");
  const auto timeline = simulate(schedule, request);
  const std::string text = draw_text(schedule, timeline, 26, false);
  CHECK_THAT(text, Contains("0|F0--F1----------B1------\n |    B0----------\n") &&
                       Contains("one below the other: a group"));
  const auto svg = draw_svg(timeline.stages, {"stage 0"}, "pair", "");
  CHECK_THAT(svg, Contains("height=\"12\"") && Contains("height=\"24\""));
}
