// What activation offload is predicted to leave on the device and to hold in host memory, beside
// the ledgers of real runs.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "predict/prediction.h"
#include "setups.h"
#include "support/sample.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;

namespace {

using Offloads = OffloadPolicy::Kind;

struct Highest {
  std::int64_t activations = 0, host = 0, peak = 0;  // of the rank that has most
};

Highest check_host(const Setup& setup) {
  const Experiment e = experiment(setup);
  std::vector<RankReport> measured;
  train(e, nullptr, [&](const StepReport& report) { measured = report.ranks; });
  Highest highest;
  for (const RankReport& rank : measured) {
    const MemoryForecast predicted = predict_rank(*e.plan, rank.rank).memory;
    const auto peak = [&](Category c) { return rank.memory[static_cast<int>(c)].peak; };
    INFO("rank " << rank.rank);
    CHECK(predicted[Category::host] == peak(Category::host));
    CHECK(predicted[Category::activations] == peak(Category::activations));
    CHECK(predicted.peak_without_scratch == rank.peak_without_scratch);
    highest.activations = std::max(highest.activations, peak(Category::activations));
    highest.host = std::max(highest.host, peak(Category::host));
    highest.peak = std::max(highest.peak, rank.peak_bytes);
  }
  return highest;
}

void compare(Setup setup) {
  setup.options["layers"] = 4;
  const Highest kept = check_host(setup);
  setup.offload.kind = Offloads::full;
  for (const int prefetch : {0, 1}) {
    INFO("prefetch " << prefetch);
    setup.offload.prefetch = prefetch;
    const Highest sent = check_host(setup);
    CHECK(sent.activations < kept.activations);
    CHECK(sent.peak < kept.peak);
    CHECK(sent.host > 0);
  }
}

}  // namespace

TEST_CASE("Offloaded activations lie where they are predicted") {
  const bool is_gpt = GENERATE(false, true);
  Setup setup = is_gpt ? gpt({}, 2) : llama({}, 2);
  SECTION("one rank") {}
  SECTION("fp64") {
    setup.precision = Precision::fp64;
  }
  SECTION("dp, tp") {
    setup.plan = {dp(2, 1 << 14), tp(2)};
  }
  SECTION("gathered keys") {
    setup.plan = {sp(2, "allgather")};
  }
  SECTION("ZeRO-3") {
    setup.plan = {zero(2, 3, 1, 1, false, 1 << 14)};
  }
  SECTION("one microbatch after the other, W's last") {
    setup.plan = {delayed_wgrads()};
  }
  DYNAMIC_SECTION((is_gpt ? "gpt" : "llama")) {
    compare(setup);
  }
}

TEST_CASE("... beside recompute, which keeps what enters a layer") {
  Setup setup = GENERATE(false, true) ? gpt({tp(2)}, 2) : llama({tp(2)}, 2);
  setup.options["layers"] = 6;
  setup.recompute.kind = GENERATE(RecomputePolicy::Kind::full, RecomputePolicy::Kind::selective);
  const Highest kept = check_host(setup);
  setup.offload.kind = Offloads::full;
  const Highest sent = check_host(setup);
  CHECK(sent.activations < kept.activations);
  CHECK(sent.host > 0);
}

TEST_CASE("... in pipelines, whose microbatches wait", "[sampled]") {
  const int which = GENERATE(range(0, 5));
  const std::string schedule = std::vector{"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"}[which];
  const bool chunked = schedule == "interleaved" || schedule == "zbv";
  const bool beside = GENERATE(false, true);
  const bool is_gpt = GENERATE(false, true);
  if (left_out({which, beside, is_gpt}, 2)) return;
  Setup setup = is_gpt ? gpt({}, 1) : llama({}, 1);
  setup.plan = {pp(2, schedule, chunked ? std::vector<int>{1, 1, 1, 1} : std::vector<int>{2, 2})};
  if (beside) setup.plan.push_back(tp(2));
  DYNAMIC_SECTION(schedule << (beside ? " tp" : "") << " " << setup.model) {
    compare(setup);
  }
}

TEST_CASE("What goes to the host is what was chosen") {
  Setup setup = llama({}, 4);
  setup.options["layers"] = 4;
  const auto host = [&] { return check_host(setup).host; };
  setup.offload.kind = Offloads::full;
  const std::int64_t all = host();
  SECTION("the first layers, each alike") {
    setup.offload.kind = Offloads::layers;
    setup.offload.layers = 4;
    CHECK(host() == all);
    setup.offload.layers = 1;
    const std::int64_t one = host();
    setup.offload.layers = 2;
    const std::int64_t two = host();
    setup.offload.layers = 3;
    CHECK(one < two);
    CHECK(host() - two == two - one);
  }
  SECTION("what is large") {
    // 4 sequences of 32 tokens in fp32: a log-sum-exp of 8 heads has 4096 bytes, a norm's
    // statistics 512, a rotary table 1024.
    setup.offload.least = 4096;
    const std::int64_t large = host();
    CHECK(all - large == 4 * 2 * 512 + 2 * 1024);
    setup.offload.least = 1 << 20;
    CHECK(host() == 0);
  }
  SECTION("by name") {
    setup.offload.kind = Offloads::ops;
    setup.offload.ops = {"swiglu"};
    // gate and up, of each layer.
    CHECK(host() == 4LL * 2 * 4 * 32 * 96 * 4);
  }
}

TEST_CASE("What comes back comes in the order in which backward reads it") {
  Setup setup = llama({}, 2);
  setup.options["layers"] = 4;
  setup.offload.kind = Offloads::full;
  setup.offload.prefetch = GENERATE(0, 1, 3);
  const Program program = experiment(setup).plan->programs.front();
  int pairs = 0;
  for (const Segment& segment : program.segments) {
    const auto reader = [&](std::size_t copy) {
      const int slot = segment.code[copy].outputs[0];
      std::size_t n = copy + 1;
      const auto reads = [&](const Instruction& i) {
        bool found = false;
        for_each_slot(i, [&](int each) { found = found || each == slot; });
        return found;
      };
      while (n < segment.code.size() && !reads(segment.code[n])) ++n;
      return n;
    };
    const auto comes_back = [&](const Instruction& i) {
      return i.code == Code::copy && i.phase == std::string_view("backward");
    };
    for (std::size_t n = 0; n + 1 < segment.code.size(); ++n) {
      if (!comes_back(segment.code[n]) || !comes_back(segment.code[n + 1])) continue;
      ++pairs;
      CHECK(reader(n) <= reader(n + 1));
    }
  }
  CHECK(pairs > 10);
}
