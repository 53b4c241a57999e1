// The memory limit of a rank: what the ledger refuses, what the predictor refuses before.
#include "predict/memory_limit.h"

#include <catch2/catch.hpp>

#include "predict/prediction.h"
#include "setups.h"
#include "support/problems.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;

namespace {

std::int64_t peak_of(const Experiment& e) {
  std::int64_t peak = 0;
  train(e, nullptr, [&](const StepReport& report) {
    for (const RankReport& rank : report.ranks) peak = std::max(peak, rank.peak_bytes);
  });
  return peak;
}

Problem failure(const Experiment& e) {
  try {
    train(e, nullptr, nullptr);
  } catch (const Error& error) {
    CHECK(error.problems().front().stage == Stage::run);
    return error.problems().front();
  }
  return {};
}

}  // namespace

// The trainer itself predicts nothing, so a limit that the plan cannot keep reaches the ledger.
TEST_CASE("An allocation over the limit ends the run with category, rank and numbers") {
  Experiment e = experiment(llama({dp(2)}, 2));
  const MemoryForecast memory = predict_rank(*e.plan, 0).memory;
  e.memory_hint = [](double) { return "do as the hint says"; };
  std::string category;
  SECTION("at set-up") {
    SECTION("parameters") {
      e.memory = memory[Category::parameters] - 1;
      category = "parameters";
    }
    SECTION("optimizer") {
      e.memory = memory[Category::parameters] + memory[Category::gradients] +
                 memory[Category::optimizer] - 1;
      category = "optimizer";
    }
  }
  SECTION("in a step") {
    e.memory = memory.peak - memory[Category::activations] / 2;
    category = "activations";
  }
  const Problem failed = failure(e);
  CHECK(codes({failed}) == "memory.exceeded memory");
  CHECK(failed.hint == "do as the hint says");
  CHECK_THAT(failed.message, Catch::Contains("for " + category));
}

TEST_CASE("The limit is the measured peak, to the byte") {
  Experiment e = experiment(llama({zero(2, 2)}, 2));
  const std::int64_t peak = peak_of(e);
  e.memory = peak;
  CHECK(peak_of(e) == peak);
  e.memory = peak - 1;
  CHECK(failure(e).code == "memory.exceeded");
}

TEST_CASE("What is offloaded does not count against the limit") {
  Experiment e = experiment(llama({zero(2, 3)}, 2));
  const std::int64_t whole = peak_of(e);
  Experiment off = experiment(llama({zero(2, 3, 1, 1, false, 1 << 12, "parameters")}, 2));
  off.memory = whole * 3 / 4;
  CHECK(peak_of(off) <= off.memory);
  e.memory = off.memory;
  CHECK(failure(e).code == "memory.exceeded");
}

TEST_CASE("A plan predicted above the limit is refused before it starts") {
  Experiment e = experiment(llama({dp(2)}, 4));
  e.memory = predicted_peak(*e.plan);
  CHECK_NOTHROW(check_memory_limit(e, e));
  --e.memory;
  // There are no plugins here: smaller microbatches are all that is left to name.
  CHECK(thrown([&] { check_memory_limit(e, e); }) == "memory.limit memory");
  CHECK_THAT(memory_hint(e, e, true), Catch::Contains("microbatch = 2"));
  e.memory = 1000;
  CHECK_THAT(memory_hint(e, e, true), Catch::Contains("no smaller microbatch would fit"));
}
