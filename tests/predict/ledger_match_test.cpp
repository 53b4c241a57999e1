// Predicted beside measured: the ledgers of real runs.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "predict/prediction.h"
#include "predict/step_counts.h"
#include "setups.h"
#include "support/braids.h"
#include "support/sample.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;

namespace {

// All but kernels' scratch to the byte. Kernels may take more or less of that in a run than in a
// trial, but no multiple of it.
void check(const Setup& setup) {
  const Experiment e = experiment(setup);
  std::vector<RankReport> measured;
  train(e, nullptr, [&](const StepReport& report) { measured = report.ranks; });
  for (const RankReport& rank : measured) {
    const RankPrediction predicted = predict_rank(*e.plan, rank.rank);
    INFO("rank " << rank.rank);
    for (Category c : {Category::parameters, Category::gradients, Category::optimizer}) {
      CHECK(predicted.memory[c] == rank.memory[static_cast<int>(c)].bytes);
    }
    CHECK(predicted.memory[Category::host] == rank.memory[static_cast<int>(Category::host)].peak);
    const auto same = [&](const char* what, std::int64_t prediction, std::int64_t measurement) {
      INFO(fmt::format("{}: predicted {}, measured {} ({:+.3f} %)", what, prediction, measurement,
                       100.0 * static_cast<double>(prediction - measurement) /
                           static_cast<double>(measurement)));
      CHECK(prediction == measurement);
    };
    same("activations", predicted.memory[Category::activations],
         rank.memory[static_cast<int>(Category::activations)].peak);
    same("buffers", predicted.memory[Category::buffers],
         rank.memory[static_cast<int>(Category::buffers)].peak);
    const std::int64_t tried = predicted.memory[Category::scratch],
                       taken = rank.memory[static_cast<int>(Category::scratch)].peak;
    INFO("scratch: predicted " << tried << ", measured " << taken);
    CHECK(taken <= 2 * tried + (64 << 10));
    CHECK(tried <= 2 * taken + (64 << 10));
    same("peak without scratch", predicted.memory.peak_without_scratch, rank.peak_without_scratch);
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

// `small`: a single token of work, so that the update's own workspace is the peak.
void check_matrices(const std::string& optimizer, int mix, Precision precision, bool small) {
  const std::vector<Mix> mixes = {
      {"one rank", {}},
      {"dp", {dp(2, 1 << 14)}},
      {"tp", {tp(2)}},
      {"zero 1 x tp", {zero(2, 1, 1, 1, false, 1 << 14), tp(2)}},
      {"zero 2 x tp", {zero(2, 2, 1, 1, false, 1 << 14), tp(2)}},
      {"zero 3 x tp", {zero(2, 3, 1, 1, false, 1 << 14), tp(2)}},
      {"zero 1, offloaded", {zero(2, 1, 1, 1, false, 1 << 14, "optimizer")}},
      {"pp x zero", {pp(2, "1f1b", {2, 1}), zero(3, 1, 1, 1, false, 1 << 14)}},
      {"uneven tp", {tp(4)}},
  };
  Setup setup = llama(mixes[mix].plan, small ? 1 : 2);
  if (small) setup.sequence = 2;
  setup.options["ffn"] = 99;
  setup.batch = 12;
  setup.precision = precision;
  setup.optimizer = optimizer;
  setup.optimizer_options = {{"lr", 0.02}, {"clip", 0.5}};
  DYNAMIC_SECTION(optimizer << " " << mixes[mix].name << " " << name_of(precision)
                            << (small ? " small" : "")) {
    check(setup);
  }
}

}  // namespace

TEST_CASE("Slices in time hold what is predicted") {
  const std::vector<StrategyChoice> slices = {
      coshard("ffn", 4), coshard("heads", 2),
      coshard("seq", 8, {"head", "ce_max", "ce_stats", "ce_loss"})};
  const std::vector<Mix> mixes = {{"one rank", {}}, {"zero 2, tp", {zero(2, 2), tp(2)}}};
  for (const Mix& mix : mixes) {
    DYNAMIC_SECTION(mix.name) {
      std::vector<StrategyChoice> plan = mix.plan;
      plan.insert(plan.end(), slices.begin(), slices.end());
      check(llama(plan, 2));
    }
  }
}

TEST_CASE("Predicted bytes are the measured ones", "[kernels][sampled]") {
  const int d = GENERATE(1, 2), t = GENERATE(1, 2, 4);
  const bool is_gpt = GENERATE(false, true);
  const int microbatch = GENERATE(0, 2);
  const Precision precision = GENERATE(Precision::fp32, Precision::fp64);
  if (left_out({d / 2, t / 2, is_gpt, microbatch / 2, precision == Precision::fp64}, 4)) return;
  std::vector<StrategyChoice> plan;
  if (d > 1) plan.push_back(dp(d, 1 << 14));
  if (t > 1) plan.push_back(tp(t));
  Setup setup = is_gpt ? gpt(plan, microbatch) : llama(plan, microbatch);
  setup.precision = precision;
  DYNAMIC_SECTION((is_gpt ? "gpt" : "llama") << " dp " << d << " tp " << t << " microbatch "
                                             << microbatch << " " << name_of(precision)) {
    check(setup);
  }
}

TEST_CASE("... in microbatches of different sizes", "[sampled]") {
  const int which = GENERATE(range(0, 3));
  const std::string schedule = std::vector{"", "1f1b", "zb-h1"}[which];
  const bool is_gpt = GENERATE(false, true);
  const std::vector<std::int64_t> sizes =
      GENERATE(std::vector<std::int64_t>{3, 3, 1}, std::vector<std::int64_t>{1, 4, 2});
  if (left_out({which, is_gpt, sizes.front() == 1}, 2)) return;
  std::vector<StrategyChoice> plan{zero(2, 2, 1, 1, false, 1 << 13), tp(2)};
  if (!schedule.empty()) plan.insert(plan.begin(), pp(2, schedule, {2, 1}));
  Setup setup = is_gpt ? gpt(plan) : llama(plan);
  setup.batch = 14;
  setup.sizes = sizes;
  DYNAMIC_SECTION((is_gpt ? "gpt " : "llama ") << schedule << " first " << sizes.front()) {
    check(setup);
  }
}

TEST_CASE("... in bf16: 2 + 2 + 12 bytes a parameter, sharded by ZeRO", "[kernels][sampled]") {
  const int stage = GENERATE(0, 1, 2, 3), ways = GENERATE(1, 2, 3);
  const bool wide = GENERATE(false, true);
  if (stage == 0 && ways == 3) return;
  if (left_out({stage, ways, wide}, 2)) return;
  Setup setup =
      llama({stage == 0 ? dp(ways, 1 << 14) : zero(ways, stage, 1, 1, false, 1 << 14)}, 2);
  setup.batch = ways == 3 ? 12 : 8;
  setup.options["tied"] = ways == 2;
  setup.precision = Precision::bf16;
  setup.fp32_gradients = wide;
  DYNAMIC_SECTION("stage " << stage << " ways " << ways << (wide ? " fp32 gradients" : "")) {
    check(setup);
    const Experiment e = experiment(setup);
    const MemoryForecast memory = predict_rank(*e.plan, 0).memory;
    const auto parameters = static_cast<double>(e.plan->graph->parameter_count());
    const auto sharded = [&](int from) { return stage >= from ? parameters / ways : parameters; };
    CHECK(memory[Category::parameters] == Approx(2 * sharded(3)).epsilon(0.01));
    CHECK(memory[Category::gradients] == Approx((wide ? 4 : 2) * sharded(2)).epsilon(0.01));
    CHECK(memory[Category::optimizer] == Approx(12 * sharded(1)).epsilon(0.01));
  }
}

TEST_CASE("... on this CPU's kernels, whatever threads they have", "[kernels][sampled]") {
  const Precision precision = GENERATE(Precision::fp32, Precision::bf16, Precision::fp16);
  const bool is_gpt = GENERATE(false, true);
  const int threads = GENERATE(1, 3);
  if (left_out({static_cast<int>(precision), is_gpt, threads / 2}, 2)) return;
  Setup setup = is_gpt ? gpt({dp(2)}, 2) : llama({dp(2)}, 2);
  setup.sequence = 48;
  setup.precision = precision;
  setup.threads = threads;
  DYNAMIC_SECTION((is_gpt ? "gpt " : "llama ") << name_of(precision) << " on " << threads) {
    check(setup);
    CHECK(predict(*experiment(setup).plan, SharedCores(round_device(2)), threads)
              .fullest()
              .memory.measured);
  }
}

TEST_CASE("... in 2 bytes beside tp, where a norm adds to the gradient that passes by it") {
  const int mix = GENERATE(range(0, 4));
  const std::vector<Mix> mixes = {
      {"tp", {tp(4)}},
      {"dp x tp", {dp(2), tp(4)}},
      {"zero 1 x tp", {zero(2, 1), tp(4)}},
      {"zero 3 x tp", {zero(2, 3), tp(4)}},
  };
  Setup setup = llama(mixes[mix].plan);
  setup.options = {{"layers", 2},   {"hidden", 128}, {"heads", 8},
                   {"kv_heads", 4}, {"ffn", 96},     {"vocab", 256}};
  setup.sequence = GENERATE(32, 64);
  setup.precision = GENERATE(Precision::bf16, Precision::fp16);
  DYNAMIC_SECTION(mixes[mix].name << " " << name_of(setup.precision) << " sequence "
                                  << setup.sequence) {
    check(setup);
  }
}

TEST_CASE("... with state in shards over the ranks of the sequence too") {
  const int stage = GENERATE(1, 2, 3), outer = GENERATE(1, 2);
  Setup setup = llama({zero_over_sequence(outer, stage), sp(4, "ring")}, 2);
  setup.precision = Precision::bf16;
  DYNAMIC_SECTION("stage " << stage << " of " << outer << " x 4") {
    check(setup);
    const Experiment e = experiment(setup);
    const MemoryForecast memory = predict_rank(*e.plan, 0).memory;
    const auto parameters = static_cast<double>(e.plan->graph->parameter_count());
    CHECK(memory[Category::optimizer] == Approx(12 * parameters / (4 * outer)).epsilon(0.01));
  }
}

TEST_CASE("... in bf16 beside tp and pipelines, with offload") {
  Setup setup =
      llama({pp(3, "1f1b", {1, 1, 1}), zero(2, 2, 1, 1, false, 1 << 14, "optimizer"), tp(2)}, 2);
  setup.precision = Precision::bf16;
  setup.fp32_gradients = GENERATE(false, true);
  check(setup);
}

// The tokens that a rank attends from lie in the first or in a later shard of the keys.
TEST_CASE("... of rings whose queries another axis cuts too") {
  const int ways = GENERATE(2, 3);
  const bool outer = GENERATE(false, true), is_gpt = GENERATE(false, true);
  const std::int64_t sequence = GENERATE(9, 12, 13);
  const StrategyChoice cuts =
      does("rows", {{"rows", ways, Role::none}}, [](Draft& draft) { draft.shard("seq", "rows"); });
  std::vector<StrategyChoice> plan = {sp(2, "ring")};
  plan.insert(outer ? plan.begin() : plan.end(), cuts);
  Setup setup = is_gpt ? gpt(plan, 1) : llama(plan, 1);
  setup.batch = 2;
  setup.sequence = sequence;
  DYNAMIC_SECTION((is_gpt ? "gpt, " : "llama, ") << ways << " ways " << (outer ? "around" : "in")
                                                 << " the ring, sequence " << sequence) {
    check(setup);
  }
}

TEST_CASE("... of GPTs in split backwards, beside tp and ZeRO", "[sampled]") {
  const std::string schedule = GENERATE(as<std::string>{}, "1f1b", "zb-h1");
  const int t = GENERATE(1, 2), stages = GENERATE(1, 2), stage = GENERATE(0, 2);
  if (left_out({schedule == "1f1b", t - 1, stages - 1, stage / 2}, 3)) return;
  std::vector<StrategyChoice> plan = {pp(stages, schedule, std::vector<int>(stages, 4 / stages))};
  if (stage > 0) plan.push_back(zero(2, stage, 1, 1, false, 1 << 13));
  if (t > 1) plan.push_back(tp(t));
  Setup setup = gpt(plan, 4);
  setup.options["layers"] = 4;
  setup.batch = 8;
  DYNAMIC_SECTION(schedule << " stages " << stages << " tp " << t << " zero " << stage) {
    check(setup);
  }
}

TEST_CASE("... with ZeRO, and what it offloads beside the rank's own") {
  const auto [stage, offload] = GENERATE(table<int, std::string>({{1, "none"},
                                                                  {2, "none"},
                                                                  {3, "none"},
                                                                  {1, "optimizer"},
                                                                  {2, "optimizer"},
                                                                  {3, "optimizer"},
                                                                  {3, "parameters"}}));
  const int ways = GENERATE(1, 2, 4);
  DYNAMIC_SECTION("stage " << stage << " offload " << offload << " ways " << ways) {
    const Setup setup = llama({zero(ways, stage, 1, 1, false, 1 << 14, offload)}, 2);
    check(setup);
    const Experiment e = experiment(setup);
    const MemoryForecast memory = predict_rank(*e.plan, 0).memory;
    CHECK((memory[Category::host] > 0) == (offload != "none"));
    CHECK((memory[Category::optimizer] > 0) == (offload == "none"));
    CHECK((memory[Category::parameters] > 0) == (offload != "parameters" || ways == 1));
  }
}

TEST_CASE("... with attention whose scores exist") {
  const Precision precision = GENERATE(Precision::fp32, Precision::bf16, Precision::fp16);
  const bool gpt = GENERATE(false, true), again = GENERATE(false, true);
  DYNAMIC_SECTION((gpt ? "gpt " : "llama ") << name_of(precision) << (again ? " selective" : "")) {
    Setup setup = llama({tp(2)}, 2);
    if (gpt) {
      setup.make_gpt();
    } else {
      setup.options["window"] = 5;
    }
    setup.options["attention"] = "unfused";
    setup.precision = precision;
    if (again) setup.recompute.kind = RecomputePolicy::Kind::selective;
    check(setup);
  }
}

TEST_CASE("... with ZeRO, and what it brings to the device for the update") {
  const auto [stage, offload] = GENERATE(table<int, std::string>(
      {{1, "optimizer"}, {2, "optimizer"}, {3, "optimizer"}, {3, "parameters"}}));
  const Precision precision = GENERATE(Precision::fp32, Precision::bf16);
  const std::string optimizer = GENERATE(as<std::string>{}, "adamw", "muon");
  DYNAMIC_SECTION("stage " << stage << " " << offload << " " << name_of(precision) << " "
                           << optimizer) {
    Setup setup = llama({zero_on_device(2, stage, offload)}, 2);
    setup.precision = precision;
    setup.optimizer = optimizer;
    check(setup);
    const MemoryForecast memory = predict_rank(*experiment(setup).plan, 0).memory;
    CHECK(memory[Category::host] > 0);
    CHECK(memory[Category::optimizer] == 0);
  }
}

TEST_CASE("... when the model is larger, and its parts uneven", "[kernels]") {
  Setup setup = llama({dp(2), tp(2)}, 2);
  setup.options = {{"layers", 2}, {"hidden", 256}, {"heads", 8}, {"ffn", 691}, {"vocab", 513}};
  setup.sequence = 128;
  SECTION("overlapped, in large buckets") {}
  SECTION("many small buckets, all at the end") {
    setup.plan = {dp(2, 1 << 16, false), tp(2)};
  }
  SECTION("tied") {
    setup.options["tied"] = true;
  }
  SECTION("keys that cannot be cut") {
    setup.options["kv_heads"] = 1;
  }
  SECTION("an axis of one rank") {
    setup.plan = {dp(1), tp(2)};
  }
  check(setup);
}

TEST_CASE("... when sequences are cut, and tensors resharded") {
  const bool is_gpt = GENERATE(false, true);
  Setup setup = is_gpt ? gpt({}, 2) : llama({}, 2);
  // One sequence: the cut dim leads, and a part of it is no copy.
  if (GENERATE(false, true)) setup.microbatch = 1;
  SECTION("gathered keys") {
    setup.plan = {sp(2, "allgather")};
  }
  SECTION("Ulysses") {
    setup.plan = {sp(2, "ulysses")};
  }
  SECTION("Megatron SP") {
    setup.plan = {tp(2), sp()};
  }
  check(setup);
}

TEST_CASE("... in every stage of a pipeline", "[sampled]") {
  const bool is_gpt = GENERATE(false, true);
  const int which = GENERATE(range(0, 6));
  const std::string schedule =
      std::vector{"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"}[which];
  const bool beside = GENERATE(false, true);
  if (left_out({is_gpt, which, beside}, 2)) return;
  const bool chunked = schedule == "interleaved" || schedule == "zbv" || schedule == "dualpipev";
  Setup setup = is_gpt ? gpt({}, beside ? 1 : 2) : llama({}, beside ? 1 : 2);
  setup.options["layers"] = 4;
  setup.plan = {pp(2, schedule, chunked ? std::vector<int>{1, 1, 1, 1} : std::vector<int>{2, 2})};
  if (beside) setup.plan.push_back(dp(2, 1 << 14));
  if (beside) setup.plan.push_back(tp(2));
  DYNAMIC_SECTION(schedule << (is_gpt ? " gpt" : " llama") << (beside ? " dp tp" : "")) {
    check(setup);
  }
}

TEST_CASE("... of braids", "[sampled]") {
  const auto all = static_cast<int>(beside_pairs().size());
  const int schedule = GENERATE(range(0, 6)), beside = GENERATE_COPY(range(0, all));
  const bool users = GENERATE(false, true), recompute = GENERATE(false, true);
  if (left_out({5 * schedule, 2 * beside, 13 * users, 7 * recompute}, 26)) return;
  NamedMix mix = paired_mix(schedule, beside, users, recompute);
  mix.setup.precision = Precision::fp32;
  // A token takes all experts, so that every rank has as many rows.
  if (mix.setup.model == "moe") mix.setup.options["top_k"] = mix.setup.options["experts"];
  DYNAMIC_SECTION(mix.name) {
    check(mix.setup);
  }
}

TEST_CASE("... where each rank keeps its shard", "[sampled]") {
  const int stage = GENERATE(1, 2, 3), microbatch = GENERATE(0, 2), mix = GENERATE(range(0, 9));
  const bool is_gpt = GENERATE(false, true);
  if (left_out({stage, microbatch / 2, mix, is_gpt}, 3)) return;
  const StrategyChoice by_chunk = zero_by_chunk(2, std::max(stage, 2));
  const std::vector<Mix> mixes = {
      {"four ways", {zero(4, stage, 1, 1, false, 1 << 14)}},
      {"three ways, uneven", {zero(3, stage, 1, 2, false, 1 << 14)}},
      {"replicas", {zero(4, stage, 2, 0, false, 1 << 14)}},
      {"kept for the step", {zero(2, stage, 1, 1, true, 1 << 14)}},
      {"beside tp and 1f1b", {pp(2, "1f1b", {2, 2}), zero(2, stage, 1, 1, false, 1 << 14), tp(2)}},
      {"beside zb-h1", {pp(2, "zb-h1", {2, 2}), zero(2, stage, 1, 1, false, 1 << 14)}},
      {"by chunk", {by_chunk}},
      {"by chunk beside interleaved", {pp(2, "interleaved", {1, 1, 1, 1}), by_chunk}},
      {"by chunk beside dualpipev", {pp(2, "dualpipev", {1, 1, 1, 1}), by_chunk}},
  };
  Setup setup = is_gpt ? gpt(mixes[mix].plan, microbatch) : llama(mixes[mix].plan, microbatch);
  if (mix == 1) setup.batch = 6;
  if (mix >= 4) {
    setup.options["layers"] = 4;
    setup.microbatch = 1;
  }
  setup.fp32_gradients = mix >= 6 && stage == 1;
  if (setup.fp32_gradients) setup.precision = Precision::bf16;
  DYNAMIC_SECTION(mixes[mix].name << " stage " << stage << " microbatch " << microbatch
                                  << (is_gpt ? " gpt" : " llama")) {
    check(setup);
  }
}

TEST_CASE("... where hooks reduce, and in every microbatch", "[sampled]") {
  const bool is_gpt = GENERATE(false, true), beside = GENERATE(false, true);
  const int microbatch = GENERATE(0, 2), how = GENERATE(range(0, 5));
  if (left_out({is_gpt, beside, microbatch / 2, how}, 3)) return;
  const std::vector<Json> hooks = {
      {{"hook", "bf16"}},
      {{"hook", "bf16"}, {"overlap", false}},
      {{"hook", "powersgd"}},
      {{"hook", {{"kind", "powersgd"}, {"rank", 1}}}, {"bucket", 1 << 30}},
      {{"reduce", "each"}}};
  Json options = {{"ways", 2}, {"bucket", 1 << 14}};
  options.update(hooks[how]);
  Setup setup = is_gpt ? gpt({}, microbatch) : llama({}, microbatch);
  setup.plan = {strategy("dp", options)};
  if (beside) {
    setup.options["layers"] = 4;
    setup.plan.insert(setup.plan.begin(), pp(2, "1f1b", {2, 2}));
    setup.plan.push_back(tp(2));
  }
  DYNAMIC_SECTION(hooks[how] << (beside ? " beside pp and tp" : "") << " microbatch " << microbatch
                             << (is_gpt ? " gpt" : " llama")) {
    check(setup);
  }
}

TEST_CASE("... with Muon: one momentum of matrices, directions gathered whole", "[kernels]") {
  const int mix = GENERATE(range(0, 9));
  const bool small = GENERATE(false, true);
  check_matrices("muon", mix, (mix % 2 == 0) == small ? Precision::bf16 : Precision::fp32, small);
}

TEST_CASE("Shampoo's factors are in the predicted bytes", "[kernels][shampoo]") {
  const int mix = GENERATE(range(0, 9));
  const bool small = GENERATE(false, true);
  check_matrices("shampoo", mix, small ? Precision::fp64 : Precision::fp32, small);
}

TEST_CASE("... in the other precision", "[matrix]") {
  const int mix = GENERATE(range(0, 9));
  const bool small = GENERATE(false, true);
  check_matrices("muon", mix, (mix % 2 == 0) == small ? Precision::fp32 : Precision::bf16, small);
}

TEST_CASE(
    "... where reals of 2 bytes are summed over ranks in fp32: twice the bytes, of sums alone") {
  const int mix = GENERATE(range(0, 8));
  const std::vector<Mix> mixes = {
      {"dp", {dp(2, 1 << 14)}},
      {"tp", {tp(2)}},
      {"Megatron SP", {tp(2), sp()}},
      {"zero 1", {zero(2, 1, 1, 1, false, 1 << 14)}},
      {"zero 2 x tp", {zero(2, 2, 1, 1, false, 1 << 14), tp(2)}},
      {"zero 3, replicas", {zero(4, 3, 2, 1, false, 1 << 14)}},
      {"pp x dp x tp", {pp(2, "1f1b", {2, 1}), dp(2, 1 << 14), tp(2)}},
      {"offloaded", {zero(2, 2, 1, 1, false, 1 << 14, "optimizer")}},
  };
  Setup setup = llama(mixes[mix].plan, 2);
  setup.precision = GENERATE(Precision::bf16, Precision::fp16);
  setup.loss_scale = 1024.0;
  const Experiment narrow = experiment(setup);
  setup.fp32_sums = true;
  DYNAMIC_SECTION(mixes[mix].name << " " << name_of(setup.precision)) {
    check(setup);
    const Experiment wide = experiment(setup);
    const Traffic before = predict_rank(*narrow.plan, 0).communication,
                  after = predict_rank(*wide.plan, 0).communication;
    REQUIRE(before.size() == after.size());
    for (const auto& [key, use] : before) {
      INFO(key.axis << " " << key.op << " " << key.phase);
      const std::string phase = key.phase;
      if (phase == "gradients") CHECK(after.at(key).bytes == 2 * use.bytes);
      if (phase == "parameters" || phase == "report") CHECK(after.at(key).bytes == use.bytes);
      // Some of tp's sums are of the loss, which is in fp32 anyway.
      const bool sums = std::string(key.op) != "all-gather" && std::string(key.op) != "send";
      if (!sums) CHECK(after.at(key).bytes == use.bytes);
      if (sums && key.axis == "tp" && phase == "backward") CHECK(after.at(key).bytes > use.bytes);
    }
  }
}

TEST_CASE("... where ranks have several experts each, to all of which every token goes") {
  const std::vector<Mix> mixes = {{"dp, ep", {dp(2), ep(2)}},
                                  {"borrowed", {dp(4), ep(2)}},
                                  {"zero 3 x tp", {zero(2, 3), ep(2), tp(2)}}};
  const Mix& mix = mixes[static_cast<std::size_t>(GENERATE(range(0, 3)))];
  Setup setup = llama(mix.plan, 4);
  setup.batch = 16;
  setup.make_moe();
  setup.options["top_k"] = 4;
  DYNAMIC_SECTION(mix.name) {
    check(setup);
  }
}
