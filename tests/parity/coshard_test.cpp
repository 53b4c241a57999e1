// Slices in time: what a rank computes of a dim in parts, one after the other, is what it computes
// at once, in every mix.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/rank_view.h"
#include "predict/step_counts.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

const std::vector<std::string> loss_ops = {"head", "ce_max", "ce_stats", "ce_loss"};

std::vector<StrategyChoice> all_slices(bool recompute) {
  return {coshard("ffn", 5, {}, recompute), coshard("heads", 2, {}, recompute),
          coshard("seq", 4, loss_ops, recompute)};
}

Setup with(std::vector<StrategyChoice> plan, const std::vector<StrategyChoice>& slices) {
  Setup setup;
  plan.insert(plan.end(), slices.begin(), slices.end());
  setup.plan = std::move(plan);
  return setup;
}

// The problem for which the plan is refused.
Problem refusal(std::vector<StrategyChoice> plan, Setup setup = {}) {
  setup.plan = std::move(plan);
  try {
    experiment(setup);
  } catch (const Error& error) {
    return error.problems().front();
  }
  return {};
}

std::int64_t activations(const Setup& setup) {
  const Experiment e = experiment(setup);
  const Program& program = e.plan->programs.front();
  return forecast_memory(RankView(program, program.first()))[Category::activations];
}

}  // namespace

TEST_CASE("Slices equal one rank") {
  const bool recompute = GENERATE(true, false);
  const int microbatch = GENERATE(0, 2);
  const std::vector<Mix> mixes = {
      {"one rank", {}},
      {"tp", {tp(2)}},
      {"tp with sp", {tp(2), sp()}},
      {"zero 1", {zero(2, 1)}},
      {"zero 2, tp", {zero(2, 2), tp(2, true)}},
      {"zero 3", {zero(2, 3)}},
      {"1f1b, dp", {pp(2, "1f1b", {1, 1}), dp(2)}},
      {"zb-h1, zero 3", {pp(2, "zb-h1", {1, 1}), zero(2, 3)}},
      {"zb-h1, tp, overlapped", {pp(2, "zb-h1", {1, 1}), tp(2, true)}},
  };
  for (const Mix& mix : mixes) {
    DYNAMIC_SECTION(mix.name << (recompute ? ", made again" : ", kept") << ", " << microbatch) {
      Setup setup = with(mix.plan, all_slices(recompute));
      setup.microbatch = microbatch;
      must_equal_one_rank(setup);
    }
  }
}

TEST_CASE("Slices of a GPT, whose down projection has a bias, equal one rank") {
  const std::vector<Mix> mixes = {{"one rank", {}}, {"tp with sp", {tp(2), sp()}}};
  for (const Mix& mix : mixes) {
    DYNAMIC_SECTION(mix.name) {
      Setup setup = with(mix.plan, {coshard("ffn", 4), coshard("heads", 3)});
      setup.make_gpt();
      must_equal_one_rank(setup);
    }
  }
}

TEST_CASE("Slices equal one rank beside recompute and offload") {
  Setup setup = with({tp(2)}, all_slices(true));
  setup.recompute.kind = GENERATE(RecomputePolicy::Kind::full, RecomputePolicy::Kind::selective);
  setup.recompute.every = 2;
  setup.microbatch = 4;
  if (setup.recompute.kind == RecomputePolicy::Kind::selective)
    setup.offload.kind = OffloadPolicy::Kind::full;
  must_equal_one_rank(setup);
}

TEST_CASE("Each slice is computed once, one after the other, and its products are as large") {
  const Experiment e = experiment(with({tp(2)}, {coshard("ffn", 5)}));
  const Program& program = e.plan->programs.front();
  const RankView rank(program, program.first());
  std::vector<int> ups;
  for (const Instruction& i : program.segments[program.segment("forward")].code) {
    if (i.op < 0 || program.graph->ops()[i.op].name != "layers.1.mlp.up") continue;
    ups.push_back(i.slice);
    CHECK(rank.dims(i.op, i.slice).at("ffn").size == 40 / 2 / 5);
    CHECK(rank.dims(i.op, i.slice).at("ffn").offset == i.slice * 4);
  }
  CHECK(ups == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("Slices that are made again hold less, and count what is computed again") {
  Setup plain;
  plain.options["ffn"] = 400;
  plain.sequence = 32;
  Setup sliced = plain;
  sliced.plan = {coshard("ffn", 8)};
  const std::int64_t whole = activations(plain), parts = activations(sliced);
  INFO(fmt::format("{} bytes, in slices {}", whole, parts));
  CHECK(static_cast<double>(parts) < 0.5 * static_cast<double>(whole));
  const Flops kept = count_flops(experiment(plain).plan->programs);
  const Flops again = count_flops(experiment(sliced).plan->programs);
  CHECK(again.model == kept.model);
  // gate and up once more for each layer
  CHECK(again.hardware - kept.hardware == Approx(2 * 2 * 2.0 * 48 * 400 * 32 * 12));
}

TEST_CASE("The loss in slices of the tokens holds the logits of one slice") {
  Setup plain;
  plain.options["vocab"] = 4000;
  plain.sequence = 32;
  Setup sliced = plain;
  sliced.plan = {coshard("seq", 8, loss_ops)};
  const std::int64_t logits = std::int64_t{8} * 12 * 32 * 4000;
  CHECK(activations(plain) - activations(sliced) > logits * 3 / 4);
}

TEST_CASE("Slices that cannot be are refused with what would do") {
  const Problem parts = refusal({tp(2), coshard("ffn", 8)});
  CHECK(parts.code == "slices.divide");
  CHECK(parts.message == "8 slices cannot part the 20 ffn of a rank");
  CHECK(parts.hint == "nearest: slices = 10");
  CHECK(refusal({coshard("ffn", 2), coshard("ffn", 4)}).code == "slices.twice");
  CHECK(refusal({coshard("heads", 2, {"attention.q"})}).code == "slices.chain");
  CHECK(refusal({coshard("vocab", 2)}).code == "slices.op");
  CHECK(refusal({coshard("experts", 2)}).code == "rule.dim");
  CHECK(refusal({coshard("ffn", 2, {"attention"})}).code == "slices.nothing");
  CHECK(refusal({coshard("ffn", 2, {"nobody"})}).code == "slices.ops");
  CHECK(refusal({coshard("batch", 2)}).code == "slices.dim");
  CHECK(refusal({sp(2, "ring"), coshard("heads", 2)}).code == "slices.ring");
  Setup grouped;  // four ranks part the query heads, and each has both key heads
  grouped.options["heads"] = 8;
  grouped.options["kv_heads"] = 2;
  CHECK(refusal({tp(4), coshard("heads", 2)}, grouped).code == "slices.follow");
}
