// What a search finds that plans few of its candidates whole, against planning all of them: with
// ample memory, and with little.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "search/orders.h"
#include "search_setups.h"

using namespace mw;
using namespace mw::test;

namespace {

// The fastest of these that a rank with so many bytes can hold.
double fastest(const std::vector<FoundPlan>& plans, double memory) {
  double least = INFINITY;
  for (const FoundPlan& one : plans) {
    if (static_cast<double>(one.predicted.fullest().memory.peak) <= memory)
      least = std::min(least, one.predicted.step_seconds);
  }
  return least;
}

// What a search that plans few candidates whole finds is at most so much slower than the fastest of
// all candidates, with ample memory and with less than most of them need.
constexpr double most_regret = 1.03;

void check_regret(Asked& asked) {
  const auto found = [&](double memory, int sampled) {
    asked.request.memory = static_cast<std::int64_t>(memory);
    asked.request.sampled = sampled;
    return search(asked.request);
  };
  const auto ample = static_cast<double>(asked.request.memory);
  const std::vector<FoundPlan> all = found(ample, 1 << 20).sample;
  REQUIRE(all.size() > 100);
  std::vector<double> peaks;
  for (const FoundPlan& one : all)
    peaks.push_back(static_cast<double>(one.predicted.fullest().memory.peak));
  std::sort(peaks.begin(), peaks.end());
  for (const double memory : {ample, peaks[peaks.size() / 3], peaks[peaks.size() / 20]}) {
    const SearchOutcome own = found(memory, 0);
    INFO(all.size() << " candidates, " << own.checked.size() << " of them planned whole, " << memory
                    << " bytes");
    CHECK(own.checked.size() < all.size() / 2);
    CHECK(fastest(own.checked, memory) <= most_regret * fastest(all, memory));
  }
}

}  // namespace

TEST_CASE("A search finds what planning all candidates whole finds: dense, stages in any order") {
  Asked asked(small());
  asked.request.strategies = {"zero", "tp", "sp", "pp"};
  asked.request.schedules = {GENERATE("1f1b", "zb-h1", "zbv", "interleaved")};
  asked.request.microbatches = {2};
  check_regret(asked);
}

TEST_CASE("A search finds what planning all candidates whole finds: copies that nothing hides") {
  Asked asked(small());
  asked.machine = two_nodes(GENERATE(2e11, 4e9));  // of four devices together
  OffloadPolicy all;
  all.kind = OffloadPolicy::Kind::full;
  asked.request.offload.push_back({"full", all});
  asked.request.strategies = {"zero", "dp", "pp"};
  asked.request.schedules = {"1f1b"};
  asked.request.microbatches = {1, 4};
  check_regret(asked);
}

TEST_CASE("A search finds what planning all candidates whole finds: a tied embedding, wide ends") {
  Setup setup = small();
  setup.model = "gpt";
  for (const char* key : {"kv_heads", "ffn"}) setup.options.erase(key);
  setup.options["tied"] = true;
  setup.options["layers"] = 9;  // no number of stages divides them but 3 and 9
  setup.options["vocab"] = 20'000;
  Asked asked(setup);
  asked.request.strategies = {"zero", "tp", "pp"};
  asked.request.schedules = {"1f1b", "interleaved"};
  asked.request.microbatches = {1, 4};
  check_regret(asked);
}

TEST_CASE("A search finds what planning all candidates whole finds: experts") {
  Asked asked(small_experts());
  asked.request.strategies = {"zero", "ep", "tp", "pp"};
  asked.request.schedules = {"1f1b"};
  asked.request.microbatches = {4};
  check_regret(asked);
}

TEST_CASE("A strategy with an order of its own is priced as 1F1B") {
  Asked asked(small());
  SearchSpace space;
  space.stages = {{"own", "", 1}};
  SearchOrders orders(asked.request, space);
  const OrderTerms* own = orders.find(0, 4, 8, 0, {{1, 1, 1, 0}, {0, 0, 0, 0}});
  REQUIRE(own != nullptr);
  REQUIRE(own->most.size() == 1);
  CHECK(own->most.front().kept == 4);  // microbatches, as 1F1B
  CHECK(own->last.front().kept == 1);
  CHECK((own->ways == std::vector<WorkCounts>{{3, 3, 0, 0}}));
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
