// The search for a mix: what it chooses among, how far its closed form is from the simulation of
// all stages, how many plans that takes, and what it recommends.
#include "search/search.h"
#include "search/whole.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "meshwright/engine/interrupt.h"
#include "search_setups.h"

using namespace mw;
using namespace mw::test;

namespace {

bool has(const FoundPlan& found, const std::string& plugin, const char* option = nullptr) {
  return std::any_of(found.entries.begin(), found.entries.end(), [&](const Json& entry) {
    return entry.at("plugin") == plugin && (option == nullptr || entry.contains(option));
  });
}

struct Errors {
  double time = 0, worst = 0, memory = 0;
  int count = 0;
};

template <class Takes>
Errors errors(const std::vector<FoundPlan>& plans, const Takes& takes) {
  Errors found;
  for (const FoundPlan& one : plans) {
    if (!takes(one)) continue;
    const double off = std::abs(one.closed_form_seconds / one.predicted.step_seconds - 1);
    UNSCOPED_INFO(one.plan << ", microbatch " << one.microbatch << ", " << one.recompute << ": "
                           << one.closed_form_seconds << " s, by events "
                           << one.predicted.step_seconds << " s; " << one.closed_form_bytes
                           << " bytes, by events " << one.predicted.fullest().memory.peak);
    found.time += off;
    found.worst = std::max(found.worst, off);
    found.memory += std::abs(
        one.closed_form_bytes / static_cast<double>(one.predicted.fullest().memory.peak) - 1);
    ++found.count;
  }
  found.time /= std::max(found.count, 1);
  found.memory /= std::max(found.count, 1);
  return found;
}

}  // namespace

TEST_CASE("The closed form is near the simulation, whatever the mix") {
  Asked asked(small());
  asked.request.sampled = 150;
  const SearchOutcome found = search(asked.request);
  REQUIRE(found.sample.size() > 140);
  const Errors all = errors(found.sample, [](const FoundPlan&) { return true; });
  CHECK(all.time < 0.025);
  CHECK(all.memory < 0.1);
  const Errors groups =
      errors(found.sample, [](const FoundPlan& one) { return has(one, "zero", "replicas"); });
  CHECK(groups.count > 10);
  CHECK(groups.time < 0.03);
  const Errors offload =
      errors(found.sample, [](const FoundPlan& one) { return has(one, "zero", "offload"); });
  CHECK(offload.count > 10);
  CHECK(offload.time < 0.03);
}

TEST_CASE("The closed form knows which mixes keep something in host memory") {
  Asked asked(small());
  OffloadPolicy all;
  all.kind = OffloadPolicy::Kind::full;
  asked.request.offload.push_back({"full", all});
  asked.request.sampled = 150;
  int kept = 0;
  for (const FoundPlan& one : search(asked.request).sample) {
    INFO(one.plan << ", microbatch " << one.microbatch << ", offload " << one.offload);
    CHECK((one.closed_form_host_bytes > 0) == (one.predicted.host_needed > 0));
    kept += one.predicted.host_needed > 0 ? 1 : 0;
  }
  CHECK(kept > 50);
}

TEST_CASE("The closed form waits for copies of activations that nothing hides") {
  Asked asked(small());
  asked.machine = two_nodes(GENERATE(0.0, 2e11, 2e10));  // of four devices together
  OffloadPolicy all;
  all.kind = OffloadPolicy::Kind::full;
  all.prefetch = GENERATE(0, 1);
  asked.request.offload = {{"full", all}};
  asked.request.sampled = 240;
  const SearchOutcome found = search(asked.request);
  double waited = 0;
  for (const FoundPlan& one : found.sample) waited += one.predicted.shares.host_copies;
  CHECK(waited > 0.01 * static_cast<double>(found.sample.size()));
  const Errors copies = errors(found.sample, [](const FoundPlan&) { return true; });
  CHECK(copies.count > 50);
  CHECK(copies.time < 0.05);
  CHECK(copies.worst < 0.3);
}

TEST_CASE("Gradients that are reduced when a stage turns to another chunk are priced so") {
  Asked asked(small());
  asked.request.strategies = {"zero", "pp", "tp"};
  asked.request.schedules = {"1f1b", "interleaved", "zbv"};
  asked.request.sampled = 1 << 20;  // all
  const SearchOutcome found = search(asked.request);
  const std::string by_chunk = ", reduce = \"chunk\"";
  const auto is_chunked = [&](const FoundPlan& one) {
    return one.plan.find(by_chunk) != std::string::npos;
  };
  const auto staged = [&](const FoundPlan& one) { return is_chunked(one) && has(one, "pp"); };
  const Errors all = errors(found.sample, is_chunked), stages = errors(found.sample, staged);
  CHECK(stages.count > 100);
  CHECK(all.count > stages.count);
  CHECK(all.time < 0.025);
  CHECK(stages.time < 0.03);
  CHECK(all.worst < 0.15);
  // Against the same with sums in every microbatch, it says of most which is faster.
  std::map<std::string, const FoundPlan*> others;
  const auto name = [](const FoundPlan& one, const std::string& plan) {
    return plan + std::to_string(one.microbatch) + one.recompute.dump();
  };
  for (const FoundPlan& one : found.sample) others[name(one, one.plan)] = &one;
  int faster = 0, right = 0, told = 0;
  for (const FoundPlan& one : found.sample) {
    if (!staged(one)) continue;
    std::string plan = one.plan;
    plan.erase(plan.find(by_chunk), by_chunk.size());
    const auto other = others.find(name(one, plan));
    REQUIRE(other != others.end());
    const double events = one.predicted.step_seconds / other->second->predicted.step_seconds;
    const double form = one.closed_form_seconds / other->second->closed_form_seconds;
    faster += events < 0.99 ? 1 : 0;
    if (std::abs(events - 1) < 0.02) continue;
    ++told;
    right += (events < 1) == (form < 1) ? 1 : 0;
  }
  CHECK(faster > 50);
  CHECK(right > 0.95 * told);
}

TEST_CASE("Experts are split over the data's ranks, and priced so") {
  Asked asked(small_experts());
  asked.request.schedules = {"1f1b"};
  asked.request.sampled = 60;
  const SearchOutcome found = search(asked.request);
  const Errors experts = errors(found.sample, [](const FoundPlan& one) { return has(one, "ep"); });
  CHECK(experts.count > 20);
  CHECK(experts.time < 0.07);
}

TEST_CASE("One plan of few layers serves many candidates") {
  const auto probes = [](const std::function<void(SearchRequest&)>& change) {
    Asked asked(small());
    asked.request.checked = 1;
    change(asked.request);
    const SearchOutcome found = search(asked.request);
    return std::pair(found.probes, found.candidates);
  };
  const auto one = probes([](SearchRequest& r) {
    r.microbatches = {1};
    r.schedules = {"1f1b"};
  });
  const auto many = probes([](SearchRequest& r) {
    r.microbatches = {1, 2, 4};
    r.schedules = {"1f1b", "gpipe", "interleaved", "zbv"};
  });
  CHECK(many.first == one.first);
  CHECK(many.second > 4 * one.second);
}

TEST_CASE("No candidate comes twice") {
  Asked asked(small());
  asked.request.strategies = {"dp", "zero", "tp"};
  asked.request.sampled = 1 << 20;  // all
  const SearchOutcome found = search(asked.request);
  std::set<std::string> seen;
  for (const FoundPlan& one : found.sample) {
    seen.insert(one.entries.dump() + std::to_string(one.microbatch) + one.recompute.dump());
  }
  CHECK(seen.size() == found.sample.size());
  CHECK(static_cast<std::int64_t>(found.sample.size()) == found.candidates);
}

TEST_CASE("Of plans that are as fast the simplest is recommended, and why says so") {
  Asked asked(small());
  asked.request.checked = 24;
  const SearchOutcome found = search(asked.request);
  REQUIRE(found.best.size() == 3);
  const double first = found.best[0].predicted.step_seconds;
  double fastest = first;
  for (const FoundPlan& one : found.checked) {
    if (one.fits) fastest = std::min(fastest, one.predicted.step_seconds);
  }
  CHECK(first <= 1.04 * fastest);
  if (first > fastest) CHECK_THAT(found.why, Catch::Contains("tied"));
  for (const FoundPlan& one : found.checked) {
    if (!one.fits || one.predicted.step_seconds > 1.04 * fastest) continue;
    const bool beaten =
        std::any_of(found.checked.begin(), found.checked.end(), [&](const FoundPlan& other) {
          return other.fits && other.predicted.step_seconds <= one.predicted.step_seconds &&
                 other.predicted.fullest().memory.peak < one.predicted.fullest().memory.peak;
        });
    if (beaten) continue;
    CHECK(found.best[0].entries.size() <= one.entries.size());
  }
}

TEST_CASE("Of microbatches the next smaller and the next larger are neighbours") {
  std::vector<SearchCandidate> all;
  for (const std::int64_t size : {8, 1, 4, 2, 16}) {  // the fastest first
    SearchCandidate one;
    one.microbatch = size;
    one.seconds = static_cast<double>(all.size() + 1);
    all.push_back(one);
  }
  SearchCandidate other = all[0];  // and another, which recomputes
  other.policy = 1;
  all.push_back(other);
  const auto sizes = [&](const SearchCandidate& of) {
    std::set<std::int64_t> found;
    for (const SearchCandidate& one : neighbours(of, all)) found.insert(one.microbatch);
    return found;
  };
  CHECK(sizes(all[3]) == std::set<std::int64_t>{1, 4});
  CHECK(sizes(all[2]) == std::set<std::int64_t>{2, 8});
  CHECK(sizes(all[0]) == std::set<std::int64_t>{4, 8, 16});
}

TEST_CASE("A stopped search has the best of what was priced") {
  Asked asked(small());
  const SearchOutcome found = stopped_search(asked);
  CHECK(found.interrupted);
  CHECK(found.candidates > 0);
  REQUIRE(!found.best.empty());
  CHECK(found.best.front().fits);
  CHECK(!found.why.empty());
}
