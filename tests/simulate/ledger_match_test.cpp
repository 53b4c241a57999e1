// Predicted beside measured: the ledgers of real runs.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "engine/trainer.h"
#include "setups.h"
#include "simulate/prediction.h"

using namespace mw;
using namespace mw::test;

namespace {

void check(const Setup& setup) {
  const Experiment e = experiment(setup);
  std::vector<RankReport> measured;
  train(e, nullptr, [&](const StepReport& report) { measured = report.ranks; });
  for (const RankReport& rank : measured) {
    const RankPrediction predicted = predict_rank(*e.plan, *e.optimizer, rank.rank);
    INFO("rank " << rank.rank);
    for (Category c : {Category::parameters, Category::gradients, Category::optimizer}) {
      CHECK(predicted.memory[c] == rank.memory[static_cast<int>(c)].bytes);
    }
    auto near = [&](const char* what, std::int64_t prediction, std::int64_t measurement) {
      INFO(fmt::format("{}: predicted {}, measured {} ({:+.3f} %)", what, prediction, measurement,
                       100.0 * static_cast<double>(prediction - measurement) / static_cast<double>(measurement)));
      CHECK(std::abs(static_cast<double>(prediction - measurement)) <= 0.02 * static_cast<double>(measurement));
    };
    near("activations", predicted.memory[Category::activations],
         rank.memory[static_cast<int>(Category::activations)].peak);
    near("buffers", predicted.memory[Category::buffers], rank.memory[static_cast<int>(Category::buffers)].peak);
    near("peak", predicted.memory.peak, rank.peak_bytes);
    CHECK(predicted.communication.size() == rank.communication.size());
    for (const auto& [key, use] : rank.communication) {
      INFO(key.axis << " " << key.op << " " << key.phase);
      const auto found = predicted.communication.find(key);
      REQUIRE(found != predicted.communication.end());
      CHECK(found->second.calls == use.calls);
      CHECK(found->second.bytes == use.bytes);
    }
  }
}

}  // namespace

TEST_CASE("Predicted bytes are the measured ones") {
  const int d = GENERATE(1, 2), t = GENERATE(1, 2, 4);
  const bool is_gpt = GENERATE(false, true);
  const int microbatch = GENERATE(0, 2);
  const Precision precision = GENERATE(Precision::fp32, Precision::fp64);
  std::vector<StrategyChoice> plan;
  if (d > 1) plan.push_back(dp(d, 1 << 14));
  if (t > 1) plan.push_back(tp(t));
  Setup setup = is_gpt ? gpt(plan, microbatch) : llama(plan, microbatch);
  setup.precision = precision;
  DYNAMIC_SECTION((is_gpt ? "gpt" : "llama") << " dp " << d << " tp " << t << " microbatch " << microbatch << " "
                                             << name_of(precision)) {
    check(setup);
  }
}

TEST_CASE("... when the model is larger, and its parts uneven") {
  Setup setup = llama({dp(2), tp(2)}, 2);
  setup.options = {{"layers", 2}, {"hidden", 256}, {"heads", 8}, {"ffn", 691}, {"vocab", 513}};
  setup.sequence = 128;
  SECTION("overlapped, in large buckets") {}
  SECTION("many small buckets, all at the end") { setup.plan = {dp(2, 1 << 16, false), tp(2)}; }
  SECTION("tied") { setup.options["tied"] = true; }
  SECTION("keys that cannot be cut") { setup.options["kv_heads"] = 1; }
  SECTION("an axis of one rank") { setup.plan = {dp(1), tp(2)}; }
  check(setup);
}

TEST_CASE("... when sequences are cut, and the residual stream is resharded") {
  Setup setup = llama({}, 2);
  SECTION("context parallel with gathered keys") {
    setup.plan = {choice("cp", std::make_shared<Rules>("cp", 2, Dims{"seq"}))};
  }
  check(setup);
}
