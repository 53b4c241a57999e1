// ZeRO: whatever each rank keeps only a part of, the gradients are one rank's.
#include <catch2/catch.hpp>

#include "support/sample.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

Setup odd_sizes(bool gpt, std::int64_t batch, std::int64_t microbatch) {
  Setup setup;
  // Odd sizes: parts do not end where parameters do.
  setup.options = {{"layers", 2}, {"hidden", 20}, {"heads", 2}, {"ffn", 27}, {"vocab", 31}};
  if (gpt) setup.make_gpt();
  setup.sequence = 5;
  setup.batch = batch;
  setup.microbatch = microbatch;
  return setup;
}

}  // namespace

TEST_CASE("ZeRO 1, 2 and 3 equal one rank", "[sampled]") {
  const int stage = GENERATE(1, 2, 3), ways = GENERATE(2, 3, 4, 8), microbatches = GENERATE(1, 4);
  const bool is_gpt = GENERATE(false, true);
  if (left_out({stage, ways / 2, microbatches / 4, is_gpt}, 3)) return;
  Setup setup = odd_sizes(is_gpt, ways * microbatches, 1);
  setup.plan = {zero(ways, stage)};
  DYNAMIC_SECTION("stage " << stage << " ways " << ways << " microbatches " << microbatches
                           << (is_gpt ? " gpt" : " llama")) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("... with replicas, beside dp, with and without parameters fetched ahead or kept") {
  const int stage = GENERATE(1, 2, 3), microbatches = GENERATE(1, 4);
  Setup setup = odd_sizes(stage == 2, 4 * microbatches, 1);
  SECTION("two replicas of two parts") {
    setup.plan = {zero(4, stage, 2)};
  }
  SECTION("gathered at the step's end") {
    Json options = {{"ways", 4}, {"stage", stage}};
    if (stage < 3) options["overlap_gather"] = false;
    setup.plan = {strategy("zero", std::move(options))};
  }
  SECTION("dp outside") {
    setup.plan = {dp(2), zero(2, stage)};
  }
  SECTION("dp inside") {
    setup.plan = {zero(2, stage), dp(2)};
  }
  SECTION("nothing fetched ahead") {
    setup.plan = {zero(4, stage, 1, 0)};
  }
  SECTION("much fetched ahead") {
    setup.plan = {zero(4, stage, 1, 9)};
  }
  SECTION("over the ranks of a ring too") {
    setup.plan = {zero_over_sequence(2, stage), sp(2, "ring")};
    setup.sequence = 8;
  }
  SECTION("... that stand outside, with replicas") {
    setup.plan = {sp(2, "allgather"), zero_over_sequence(4, stage, 2)};
    setup.sequence = 8;
  }
  SECTION("... which are all there are") {
    setup.plan = {zero_over_sequence(1, stage), sp(3, "ring"), tp(2)};
    setup.sequence = 6;
  }
  SECTION("kept for the step") {
    setup.plan = {zero(4, stage, 1, 1, true)};
  }
  must_equal_one_rank(setup);
}

TEST_CASE("... reduced when a stage turns to another chunk of the model", "[sampled]") {
  const int which = GENERATE(range(0, 6)), stage = GENERATE(2, 3), microbatches = GENERATE(1, 4);
  const std::string schedule =
      std::vector{"none", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"}[which];
  const bool is_gpt = GENERATE(false, true), tensors = GENERATE(false, true);
  if (left_out({which, stage - 2, microbatches / 4, is_gpt, tensors}, 4)) return;
  Setup setup = odd_sizes(is_gpt, 4 * microbatches, 1);
  setup.options["layers"] = 4;
  setup.options["tied"] = is_gpt || tensors;
  setup.plan = {zero_by_chunk(4, stage, tensors ? 2 : 1)};
  const bool chunked = which == 2 || which >= 4;
  if (which > 0) {
    setup.plan.insert(
        setup.plan.begin(),
        pp(2, schedule, chunked ? std::vector<int>{1, 1, 1, 1} : std::vector<int>{2, 2}));
  }
  if (tensors) setup.plan.push_back(tp(2));
  DYNAMIC_SECTION(schedule << " stage " << stage << " microbatches " << microbatches
                           << (is_gpt ? " gpt" : " llama") << (tensors ? " tp" : "")) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("... by chunk, of experts that are reduced over fewer ranks") {
  const std::string schedule = GENERATE(as<std::string>{}, "interleaved", "zbv");
  Setup setup;
  setup.make_moe();
  setup.options["layers"] = 4;
  setup.batch = 8;
  setup.microbatch = 1;
  setup.plan = {pp(2, schedule, {1, 1, 1, 1}), zero_by_chunk(2, 2), ep(2)};
  DYNAMIC_SECTION(schedule) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("... offloaded to host memory, beside pipelines and tp", "[matrix]") {
  const auto [stage, offload] = GENERATE(table<int, std::string>(
      {{1, "optimizer"}, {2, "optimizer"}, {3, "optimizer"}, {3, "parameters"}}));
  const int microbatches = GENERATE(1, 4);
  const bool stages = GENERATE(false, true), tensors = GENERATE(false, true);
  Setup setup = odd_sizes(microbatches == 4, 2 * microbatches, 1);
  setup.plan = {zero(2, stage, 1, 1, stages && tensors, 1 << 12, offload)};
  if (stages) setup.plan.insert(setup.plan.begin(), pp(2, "1f1b", {1, 1}));
  if (tensors) setup.plan.push_back(tp(2));
  DYNAMIC_SECTION("stage " << stage << " offload " << offload << " microbatches " << microbatches
                           << (stages ? " pp" : "") << (tensors ? " tp" : "")) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("... updated in host memory beside the forward, or beside the backward") {
  const auto [stage, offload] = GENERATE(table<int, std::string>(
      {{1, "optimizer"}, {2, "optimizer"}, {3, "optimizer"}, {3, "parameters"}}));
  const bool may_leave_out = GENERATE(true, false);
  const std::string optimizer = GENERATE(as<std::string>{}, "adamw", "sgd", "muon", "shampoo");
  if (optimizer == "shampoo" && stage != 1) return;
  Setup setup = odd_sizes(false, 4, 1);
  setup.optimizer = optimizer;
  setup.optimizer_options = {{"lr", 1e-3}};
  setup.may_leave_out = may_leave_out;
  setup.plan = {zero_on_host(2, stage, offload, true)};
  if (optimizer != "sgd") setup.plan.insert(setup.plan.begin(), pp(2, "1f1b", {1, 1}));
  DYNAMIC_SECTION("stage " << stage << " " << offload << " " << optimizer
                           << (may_leave_out ? "" : " beside backward")) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("... kept in host memory and updated on the device") {
  const auto [stage, offload] = GENERATE(table<int, std::string>(
      {{1, "optimizer"}, {2, "optimizer"}, {3, "optimizer"}, {3, "parameters"}}));
  const std::string optimizer = GENERATE(as<std::string>{}, "adamw", "muon", "sgd");
  const bool stages = GENERATE(false, true);
  Setup setup = odd_sizes(false, 4, 1);
  setup.optimizer = optimizer;
  setup.plan = {zero_on_device(2, stage, offload)};
  if (stages) setup.plan.insert(setup.plan.begin(), pp(2, "1f1b", {1, 1}));
  DYNAMIC_SECTION("stage " << stage << " " << offload << " " << optimizer
                           << (stages ? " pp" : "")) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("... with tp, with pipelines, with both", "[matrix]") {
  const int stage = GENERATE(1, 2, 3), microbatches = GENERATE(1, 4);
  const std::string schedule = GENERATE(as<std::string>{}, "none", "1f1b", "zb-h1", "zbv");
  const int tp_ways = GENERATE(1, 2);
  const bool is_gpt = GENERATE(false, true);
  const bool keeps = microbatches == 4 && tp_ways == 2;
  Setup setup = odd_sizes(is_gpt, 2 * microbatches, 1);
  setup.options["layers"] = schedule == "zbv" ? 4 : 2;
  setup.plan = {zero(2, stage, 1, 1, keeps)};
  if (schedule != "none") {
    setup.plan.insert(setup.plan.begin(),
                      pp(2, schedule, std::vector<int>(schedule == "zbv" ? 4 : 2, 1)));
  }
  if (tp_ways > 1) setup.plan.push_back(tp(tp_ways));
  DYNAMIC_SECTION("stage " << stage << " microbatches " << microbatches << " " << schedule << " tp "
                           << tp_ways << (is_gpt ? " gpt" : " llama")) {
    must_equal_one_rank(setup);
  }
}
