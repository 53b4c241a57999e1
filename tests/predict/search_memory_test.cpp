// What a search holds a candidate to need: near what its plan does, and at least never more, so
// that no plan is passed over that fits.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "meshwright/engine/forecast.h"
#include "search/orders.h"
#include "search_setups.h"

using namespace mw;
using namespace mw::test;

namespace {

OffloadPolicy all_away() {
  OffloadPolicy all;
  all.kind = OffloadPolicy::Kind::full;
  return all;
}

struct Off {
  double mean = 0, lowest = 0, highest = 0;
  int count = 0;
};

// How far the closed form is from the footprints; that none needs less than it is held to need.
Off memory_of(const std::vector<FoundPlan>& plans) {
  Off off;
  for (const FoundPlan& one : plans) {
    const auto peak = static_cast<double>(one.predicted.fullest().memory.peak);
    INFO(one.plan << ", microbatch " << one.microbatch << ", " << one.recompute << ", offload "
                  << one.offload << ": " << one.closed_form_bytes << " bytes, at least "
                  << one.closed_form_least << "; by footprints " << peak);
    CHECK(one.closed_form_least <= peak);
    // One microbatch is sure of orders that follow the times of works, of others what they hold.
    const bool follows = one.plan.find("\"zb") != std::string::npos ||
                         one.plan.find("dualpipev") != std::string::npos;
    CHECK(one.closed_form_least > (follows ? 0.02 : 0.15) * peak);
    const double error = one.closed_form_bytes / peak - 1;
    off.mean += std::abs(error);
    off.lowest = std::min(off.lowest, error);
    off.highest = std::max(off.highest, error);
    ++off.count;
  }
  off.mean /= std::max(off.count, 1);
  return off;
}

// The mixes are drawn at even distances in the order of their times. The closed form errs most for
// a few of them, of ZeRO 3 with state in host memory: among 700 mixes of the dense model it says
// 0.38 too much of one.
constexpr double most_off = 0.4;

SearchOutcome sampled(Asked& asked, int count) {
  asked.request.schedules = {"1f1b",  "gpipe", "interleaved", "looped-bfs",
                             "zb-h1", "zbv",   "dualpipev"};
  asked.request.sampled = count;
  return search(asked.request);
}

}  // namespace

TEST_CASE("No candidate is held to need more than it does: dense, offloaded, recomputed") {
  Asked asked(small());
  asked.request.offload.push_back({"full", all_away()});
  const Off off = memory_of(sampled(asked, 200).sample);
  CHECK(off.count > 180);
  CHECK(off.mean < 0.04);
  CHECK(off.lowest > -0.28);
  CHECK(off.highest < most_off);
}

TEST_CASE(
    "No candidate is held to need more than it does: a tied embedding that outweighs layers") {
  Setup setup = small();
  setup.model = "gpt";
  for (const char* key : {"kv_heads", "ffn"}) setup.options.erase(key);
  setup.options["tied"] = true;
  setup.options["layers"] = 9;  // no number of stages divides them but 3 and 9
  setup.options["vocab"] = 20'000;
  Asked asked(setup);
  const SearchOutcome found = sampled(asked, 200);
  const Off off = memory_of(found.sample);
  CHECK(off.count > 180);
  CHECK(off.mean < 0.03);
  CHECK(off.lowest > -0.25);
  CHECK(off.highest < most_off);
  for (const FoundPlan& one : found.sample) {  // both stages of the embedding keep its states
    const auto host = static_cast<double>(one.predicted.host_needed);
    INFO(one.plan << ": " << one.closed_form_host_bytes << " bytes of a node, of " << host);
    if (host > 0) CHECK(std::abs(one.closed_form_host_bytes / host - 1) < 0.25);
  }
}

TEST_CASE("No candidate is held to need more than it does: experts") {
  Asked asked(small_experts());
  const Off off = memory_of(sampled(asked, 200).sample);
  CHECK(off.count > 180);
  CHECK(off.mean < 0.04);
  CHECK(off.lowest > -0.35);
  CHECK(off.highest < 0.65);
}

TEST_CASE("What stages hold between works is counted as plans lay it down") {
  const std::string schedule = GENERATE("1f1b", "gpipe", "interleaved", "looped-bfs");
  Setup setup = small();
  setup.options["layers"] = 16;
  Asked asked(setup);
  asked.request.strategies = {"pp"};
  asked.request.schedules = {schedule};
  asked.request.sampled = 1 << 20;  // all
  const SearchOutcome found = search(asked.request);
  REQUIRE(!found.sample.empty());
  int looked = 0;
  for (const FoundPlan& one : found.sample) {
    if (one.recompute != "none") continue;
    PlanRequest request = asked.request.base.plan->request;
    request.microbatch = one.microbatch;
    request.strategies.clear();
    for (const Json& entry : one.entries)
      request.strategies.push_back(asked.request.base.make_strategy(entry));
    Problems problems;
    const auto plan = make_plan(request, problems);
    REQUIRE(plan);
    double most = 0;
    for (const Program& program : plan->programs) {
      const RankView rank(program, rank_classes(program).front().at, 0, asked.machine.scratch());
      const MemoryTimeline line = memory_timeline(rank);
      const auto lasting = static_cast<double>(line.lasting.peak);
      for (const MemoryOfRun& moment : line.moments) {
        most = std::max(
            most, lasting + static_cast<double>(moment.activations_after + moment.buffers_after));
      }
    }
    most += static_cast<double>(asked.machine.kept_by_libraries());
    INFO(one.plan << ", microbatch " << one.microbatch << ": " << one.closed_form_least
                  << " bytes between works, by footprints " << most);
    CHECK(std::abs(one.closed_form_least / most - 1) < 0.015);
    ++looked;
  }
  CHECK(looked > 3);
}

TEST_CASE("What a strategy with an order of its own holds is no bound") {
  Asked asked(small());
  SearchSpace space;
  space.stages = {{"own", "", 1}};
  SearchOrders orders(asked.request, space);
  const auto times = [] { return LayerTimes{{1, 1, 1, 0}, {0, 0, 0, 0}}; };
  const OrderTerms* own = orders.find(0, 4, 8, 0, times);
  REQUIRE(own != nullptr);
  CHECK(own->assumed);
  float most = 0;
  for (const Moment& moment : own->moments.usual) most = std::max(most, moment[Counted::kept]);
  CHECK(most == 4 * 2);  // four microbatches of two layers, as 1F1B
  float sure = 0;
  for (const Moment& moment : own->moments.sure) sure = std::max(sure, moment[Counted::kept]);
  CHECK(sure == 2);
}

TEST_CASE("A plan that fits is found where all but a few are too large") {
  Asked asked(small());
  asked.request.sampled = 100;
  std::vector<double> peaks;
  for (const FoundPlan& one : search(asked.request).sample)
    peaks.push_back(static_cast<double>(one.predicted.fullest().memory.peak));
  std::sort(peaks.begin(), peaks.end());
  asked.request.memory = static_cast<std::int64_t>(peaks.at(peaks.size() / 20));
  asked.request.checked = GENERATE(6, 1);
  asked.request.sampled = 100;
  const SearchOutcome found = search(asked.request);
  REQUIRE(!found.best.empty());
  // What is most likely too large and was left is said.
  const bool told = found.why.find("not planned whole: a larger checked") != std::string::npos;
  CHECK(told == (found.unconfirmed > 0));
  double slowest = 0;
  for (const FoundPlan& one : found.best) slowest = std::max(slowest, one.predicted.step_seconds);
  CHECK(static_cast<int>(found.best.size()) == asked.request.best);
  // None of the sample, planned whole, fits and is faster than what is returned.
  for (const FoundPlan& one : found.sample) {
    INFO(one.plan << ", microbatch " << one.microbatch);
    const bool returned = std::any_of(found.best.begin(), found.best.end(), [&](const auto& b) {
      return b.entries == one.entries && b.microbatch == one.microbatch;
    });
    if (one.fits && !returned) CHECK(one.predicted.step_seconds >= 0.98 * slowest);
  }
}
