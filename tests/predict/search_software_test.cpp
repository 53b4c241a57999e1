// What a search leaves out as the stack's software cannot run it, what it never puts first, and
// which published step a plan is nearest to.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "predict/measured.h"
#include "predict/runs.h"
#include "search/search.h"
#include "search_setups.h"

using namespace mw;
using namespace mw::test;

namespace {

SoftwareRuns runs_of(const Json& table) {
  Problems problems;
  SoftwareRuns runs = SoftwareRuns::read(table, "stack.runs", problems);
  REQUIRE(problems.empty());
  return runs;
}

ClusterMachine running(const Json& table) {
  const ClusterMachine machine = two_nodes();
  Stack stack = machine.stack();
  stack.name = "old";
  stack.runs = runs_of(table);
  return {machine.cluster(), stack};
}

const Json old_software = {{"dp", true},
                           {"zero", {{"stage", {1, 3}}, {"offload", {"none"}}}},
                           {"tp", {{"overlap", {false}}}},
                           {"pp", true},
                           {"schedules", {"1f1b", "interleaved"}},
                           {"recompute", {"none"}},
                           {"apart", {{{"pp", true}, {"zero", {{"stage", {3}}}}}}}};

SearchOutcome all_of(Asked& asked) {
  asked.request.sampled = 1 << 20;
  return search(asked.request);
}

// Devices with just the memory that the program needs; `beside` times as much comes beside it.
ClusterMachine just_large_enough(const FoundPlan& plan, double beside) {
  const ClusterMachine machine = two_nodes();
  Cluster cluster = machine.cluster();
  const std::int64_t peak = plan.predicted.fullest().memory.peak;
  cluster.device.memory = peak + 1;
  cluster.device.context = static_cast<std::int64_t>(beside * static_cast<double>(peak));
  return {cluster, machine.stack()};
}

bool dominates(const FoundPlan& a, const FoundPlan& b) {
  const double x = a.predicted.step_seconds, y = b.predicted.step_seconds;
  const std::int64_t p = a.predicted.fullest().memory.peak, q = b.predicted.fullest().memory.peak;
  return x <= y && p <= q && (x < y || p < q);
}

}  // namespace

TEST_CASE("A search proposes nothing that the software lacks, and all that it has") {
  Asked asked(small());
  asked.machine = running(old_software);
  asked.request.strategies = {"dp", "zero", "tp", "sp", "pp"};
  asked.request.schedules = {"1f1b", "gpipe"};
  asked.request.microbatches = {2};
  asked.request.ranks = 4;
  const SearchOutcome own = all_of(asked);
  bool staged = false, sharded = false;
  for (const FoundPlan& one : own.sample) {
    INFO(one.plan);
    CHECK(one.predicted.cannot_run.empty());
    staged = staged || one.plan.find("pp(") != std::string::npos;  // 1f1b, if nothing else is said
    sharded = sharded || one.plan.find("stage = 3") != std::string::npos;
  }
  CHECK(staged);
  CHECK(sharded);
  const auto left = [&](const char* text) {
    return std::any_of(own.left_out.begin(), own.left_out.end(),
                       [&](const std::string& one) { return one.find(text) != std::string::npos; });
  };
  CHECK(left("sp (it has dp, pp, tp, zero)"));
  CHECK(left("the schedule gpipe (it has 1f1b, interleaved)"));
  CHECK(left("recompute = \"full\""));
  CHECK(left("zero { stage = 2 } (it has 1, 3)"));
  CHECK(left("tp { overlap = true }"));

  asked.request.unsupported = true;
  const SearchOutcome wide = all_of(asked);
  std::int64_t can = 0;
  std::set<std::string> why;
  for (const FoundPlan& one : wide.sample) {
    can += one.predicted.cannot_run.empty() ? 1 : 0;
    why.insert(one.predicted.cannot_run.begin(), one.predicted.cannot_run.end());
  }
  CHECK(can == own.candidates);
  CHECK(wide.candidates > own.candidates);
  CHECK(why.count("pp with zero { stage = 3 }") == 1);
  CHECK(why.count("the schedule gpipe (it has 1f1b, interleaved)") == 1);
  CHECK(wide.left_out.empty());
}

TEST_CASE("What only goes with something else is left out without it") {
  const SoftwareRuns runs = runs_of({{"apart", {{{"tp", true}, {"sp", false}}}}});
  const auto tp = runs.parts_of("tp", {{"ways", 2}}), sp = runs.parts_of("sp", Json::object());
  CHECK(runs.lacks_together(tp) == "tp without sp");
  CHECK(runs.lacks_together(tp | sp).empty());
  CHECK(runs.lacks_together(sp).empty());
  CHECK(runs.lacks_together(0).empty());
}

TEST_CASE("Software that has nothing of something is said to have none") {
  const SoftwareRuns runs = runs_of({{"recompute", Json::array()}, {"schedules", Json::array()}});
  CHECK(runs.lacks_policy("recompute", "full") == "recompute = \"full\" (it has none)");
  CHECK(runs.lacks_schedule("zbv") == "the schedule zbv (it has none)");
}

TEST_CASE("A search for what the software lacks alone is refused") {
  Asked asked(small());
  asked.machine = running(old_software);
  asked.request.schedules = {"zbv", "gpipe"};
  try {
    search(asked.request);
    FAIL("nothing was refused");
  } catch (const Error& error) {
    const Problem& problem = error.problems().front();
    CHECK(problem.code == "search.software");
    CHECK(problem.key == "schedules");
    CHECK_THAT(problem.hint, Catch::Contains("unsupported = true"));
  }
}

TEST_CASE("Lists of what software runs are checked") {
  const auto key = [](const Json& table) {
    Problems problems;
    SoftwareRuns::read(table, "stack.runs", problems);
    REQUIRE(problems.list().size() == 1);
    CHECK(problems.list().front().code == "cluster.value");
    return problems.list().front().key;
  };
  CHECK(key({{"schedules", "1f1b"}}) == "stack.runs.schedules");
  CHECK(key({{"zero", {{"stage", 1}}}}) == "stack.runs.zero");
  CHECK(key({{"tp", false}}) == "stack.runs.tp");
  CHECK(key({{"apart", {{{"tp", 3}}}}}) == "stack.runs.apart");
}

TEST_CASE("No plan that another beats in time and memory is first") {
  for (const std::int64_t batch : {16, 32, 64}) {
    Setup setup = small();
    setup.batch = batch;
    Asked asked(setup);
    asked.request.checked = 24;
    const SearchOutcome found = search(asked.request);
    for (const FoundPlan& one : found.checked) {
      INFO(found.best[0].plan << " against " << one.plan);
      CHECK_FALSE((one.fits && dominates(one, found.best[0])));
    }
  }
}

TEST_CASE("A plan that a driver would report as over the device is not first") {
  Asked free(small());
  free.request.checked = 24;
  const FoundPlan fastest = [&] {
    const SearchOutcome found = search(free.request);
    return *std::min_element(found.checked.begin(), found.checked.end(),
                             [](const FoundPlan& a, const FoundPlan& b) {
                               return a.predicted.step_seconds < b.predicted.step_seconds;
                             });
  }();
  Asked asked(small());
  asked.machine = just_large_enough(fastest, 0.02);
  asked.request.memory = asked.machine.memory();
  asked.request.checked = 24;
  const SearchOutcome found = search(asked.request);
  CHECK(found.best[0].predicted.room() < Room::over);
  const auto over = std::count_if(found.checked.begin(), found.checked.end(), [&](const auto& one) {
    return one.fits && one.predicted.room() >= Room::over &&
           one.predicted.step_seconds < found.best[0].predicted.step_seconds;
  });
  CHECK(over > 0);
  CHECK_THAT(found.why, Catch::Contains("a driver would report more memory than the device has"));
}

// A stopped search that has found something.
SearchOutcome stopped(Asked& asked) {
  SearchOutcome found = stopped_search(asked);
  REQUIRE(found.interrupted);
  REQUIRE(!found.best.empty());
  return found;
}

TEST_CASE("A stopped search puts no plan first that is over the device") {
  Asked free(small());
  const FoundPlan first = stopped(free).best.front();
  Asked asked(small());
  asked.machine = just_large_enough(first, 0.02);
  asked.request.memory = asked.machine.memory();
  const SearchOutcome found = stopped(asked);
  CHECK(found.best.front().predicted.room() < Room::over);
  CHECK(found.best.front().plan != first.plan);
}

TEST_CASE("Where the software would run out under every plan, there is none to put first") {
  Asked asked(small());
  asked.request.strategies = {"dp"};
  asked.request.schedules = {};
  asked.request.microbatches = {1};
  const FoundPlan least = [&] {
    const SearchOutcome found = search(asked.request);
    return *std::min_element(
        found.checked.begin(), found.checked.end(), [](const FoundPlan& a, const FoundPlan& b) {
          return a.predicted.fullest().memory.peak < b.predicted.fullest().memory.peak;
        });
  }();
  asked.machine = just_large_enough(least, 0.5);
  asked.request.memory = asked.machine.memory();
  try {
    search(asked.request);
    FAIL("nothing was refused");
  } catch (const Error& error) {
    CHECK(error.problems().front().code == "search.memory");
    CHECK_THAT(error.problems().front().message, Catch::Contains("would run out"));
  }
}

TEST_CASE("A plan is near a published step within a factor of two of it") {
  const PublishedStep large = {175e9, 384, {12, 8, 1, 1}, "large"};
  const PublishedStep little = {1e9, 32, {1, 1, 1, 1}, "little"};
  const auto nearest = [&](const PublishedStep& sizes) {
    const auto found = nearest_measured({large, little}, sizes);
    REQUIRE(found);
    return std::pair(found->step.table, found->near);
  };
  CHECK(nearest({180e9, 512, {16, 8, 1, 1}}) == std::pair<std::string, bool>("large", true));
  CHECK(nearest({180e9, 1024, {16, 8, 1, 1}}) == std::pair<std::string, bool>("large", false));
  CHECK(nearest({180e9, 512, {16, 8, 2, 1}}) == std::pair<std::string, bool>("large", false));
  CHECK(nearest({2e9, 16, {1, 1, 1, 1}}) == std::pair<std::string, bool>("little", true));
  CHECK(nearest({2e9, 16, {1, 1, 1, 2}}) == std::pair<std::string, bool>("little", false));
  CHECK_FALSE(nearest_measured({}, large));
}

TEST_CASE("Found plans say what of them was measured") {
  Asked asked(small());
  Stack stack = asked.machine.stack();
  stack.measured = {{4e7, 8, {2, 1, 1, 1}, "ours"}};
  asked.machine = ClusterMachine(asked.machine.cluster(), stack);
  asked.request.strategies = {"dp", "pp"};
  asked.request.schedules = {"1f1b"};
  const SearchOutcome found = all_of(asked);
  int near = 0;
  for (const FoundPlan& one : found.sample) {
    REQUIRE(one.measured);
    CHECK(one.measured->step.table == "ours");
    const bool split =
        one.plan.find("pp(2)") != std::string::npos || one.plan.find("pp(4)") != std::string::npos;
    CHECK(one.beyond_measured() != split);
    near += one.beyond_measured() ? 0 : 1;
  }
  CHECK(near > 0);
  CHECK(near < static_cast<int>(found.sample.size()));
}
