// Predictions: flops, rates, shared cores, overlap, memory, and how long predicting takes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <ctime>

#include "clusters.h"
#include "plugins/models/ops/attend.h"
#include "predict/prediction.h"
#include "predict/price.h"
#include "setups.h"

using namespace mw;
using namespace mw::test;

namespace {

Prediction predict(const Setup& setup, const Machine& machine = SharedCores(round_device())) {
  const Experiment e = experiment(setup);
  return mw::predict(*e.plan, machine);
}

// 6 flops for each weight of a matmul and token, and 12 s h for the scores of a layer and token.
double llama_flops() {
  const double tokens = 8 * 32, layers = 3, hidden = 64, ffn = 96, vocab = 128, kv = 32;
  const double weights =
      layers * (hidden * (2 * hidden + 2 * kv) + 3 * hidden * ffn) + vocab * hidden;
  return tokens * (6 * weights + 12 * layers * hidden * 32);
}

}  // namespace

TEST_CASE("Model flops are those of the field's formula, whatever the mix") {
  for (const auto& plan :
       std::vector<std::vector<StrategyChoice>>{{}, {dp(4)}, {tp(4)}, {dp(2), tp(2)}}) {
    for (int microbatch : {0, 1}) {
      const Prediction p = predict(llama(plan, microbatch));
      CHECK(p.flops_per_step == Approx(llama_flops()));
      CHECK(p.hardware_flops_per_step == Approx(llama_flops()));
    }
  }
}

TEST_CASE("Work that ranks repeat counts on the hardware only") {
  Setup setup = llama({tp(8)});  // 4 key heads: all on every rank
  const Prediction p = predict(setup);
  CHECK(p.flops_per_step == Approx(llama_flops()));
  const double keys = 2 * 6.0 * 8 * 32 * 3 * 64 * 32;
  CHECK(p.hardware_flops_per_step == Approx(llama_flops() + 7 * keys));
  CHECK(p.hfu > p.mfu);
}

TEST_CASE("Rates follow from the step's time") {
  const Prediction p = predict(llama({dp(2), tp(2)}));
  REQUIRE(p.step_seconds > 0);
  CHECK(p.tokens_per_second == Approx(256 / p.step_seconds));
  CHECK(p.tokens_per_second_per_device == Approx(64 / p.step_seconds));
  CHECK(p.mfu == Approx(p.flops_per_step / (p.step_seconds * 2e11)));
  CHECK(p.mfu_6n ==
        Approx(6.0 * static_cast<double>(p.parameters) * 256 / (p.step_seconds * 2e11)));
  CHECK(p.step_seconds == Approx(p.compute_seconds + p.exposed_seconds));
  CHECK(p.bubble_fraction == 0);
}

TEST_CASE("Ranks that share cores take turns; ranks with devices of their own do not") {
  const Prediction two = predict(llama({dp(2)})), eight = predict(llama({dp(8)}));
  // A quarter of the work each, four ranks to a core: about the same, and more overhead.
  CHECK(eight.compute_seconds > two.compute_seconds);
  CHECK(eight.compute_seconds < 8 * two.compute_seconds);
  const ClusterMachine own = round_machine();
  CHECK(predict(llama({dp(8)}), own).compute_seconds <
        predict(llama({dp(2)}), own).compute_seconds);
}

TEST_CASE("Attention's products take what its kernel reaches of the rate of large ones") {
  Device device = round_device(1);
  device.bandwidth = 1e16;
  const auto seconds = [&] { return predict(llama({}), SharedCores(device)).step_seconds; };
  const double before = seconds();
  device.attention = LogCurve({{8, 0.5}});
  device.attention_backward = LogCurve({{8, 0.25}});
  const kernel::AttendSizes sizes{8, 8, 32, 32, 8, 8, kernel::Sight::Kind::same};
  const double more =
      kernel::attend_executed(sizes, false) + 3 * kernel::attend_executed(sizes, true);
  CHECK(seconds() - before == Approx(3 * more / 1e11));
}

TEST_CASE("A rank's threads share elementwise work, but for what is in two bytes") {
  Device device = round_device(2);
  device.gemm16 = device.gemm32 = {1e18, 0};
  device.pointwise16 = device.pointwise32 = 1e6;  // so that all else counts for nothing
  const auto seconds = [&](Precision precision, std::int64_t sequence, int threads) {
    Setup setup = llama({});
    setup.options["layers"] = 1;
    setup.options["vocab"] = 16;
    setup.sequence = sequence;
    setup.precision = precision;
    const Experiment e = experiment(setup);
    return mw::predict(*e.plan, SharedCores(device), threads).compute_seconds;
  };
  CHECK(seconds(Precision::fp32, 1024, 2) < 0.6 * seconds(Precision::fp32, 1024, 1));
  CHECK(seconds(Precision::bf16, 1024, 2) > 0.9 * seconds(Precision::bf16, 1024, 1));
  // Few numbers are not worth a second thread.
  CHECK(seconds(Precision::fp32, 4, 2) > 0.9 * seconds(Precision::fp32, 4, 1));
}

TEST_CASE("Transfers run beside compute only where ranks have devices of their own") {
  const std::vector<StrategyChoice> beside{dp(2, 1 << 12, true)}, after{dp(2, 1 << 12, false)};
  auto gradients = [](const Prediction& p) {
    for (const CommunicationForecast& c : p.communication) {
      if (c.key.phase == "gradients") return c;
    }
    return CommunicationForecast{};
  };
  const ClusterMachine own = round_machine();
  const CommunicationForecast hidden = gradients(predict(llama(beside), own));
  const CommunicationForecast shown = gradients(predict(llama(after), own));
  CHECK(hidden.seconds == Approx(shown.seconds));
  CHECK(hidden.exposed_seconds < 0.7 * hidden.seconds);
  CHECK(shown.exposed_seconds > 0.9 * shown.seconds);
  const CommunicationForecast threads = gradients(predict(llama(beside)));
  CHECK(threads.exposed_seconds == Approx(threads.seconds));
}

TEST_CASE("A repeated microbatch takes as long as the first") {
  const Prediction one = predict(llama({tp(2)})), four = predict(llama({tp(2)}, 2));
  CHECK(four.communication[1].calls == 4 * one.communication[1].calls);
  CHECK(four.flops_per_step == Approx(one.flops_per_step));
  CHECK(four.step_seconds > one.step_seconds);
}

TEST_CASE("What does not fit is said") {
  Device small = round_device();
  small.memory = 1 << 20;
  const Setup setup = llama({dp(2)});
  const Experiment e = experiment(setup);
  const Prediction p = mw::predict(*e.plan, SharedCores(small));
  CHECK_FALSE(p.fits);
  CHECK(print(*e.plan, p).find("does not fit") != std::string::npos);
  CHECK(predict(setup).fits);
}

TEST_CASE("The prediction as JSON has the keys that others read") {
  const Json json = predict(llama({dp(2), tp(2)})).to_json();
  for (const char* key :
       {"ranks", "parameters", "flops_per_step", "hardware_flops_per_step", "memory",
        "communication", "step_seconds", "compute_seconds", "bubble_fraction",
        "tokens_per_second_per_device", "mfu", "mfu_6n", "hfu", "fits"}) {
    CHECK(json.contains(key));
  }
  REQUIRE(json["memory"].size() == 1);
  for (const char* key :
       {"parameters", "gradients", "optimizer", "activations", "buffers", "peak"}) {
    CHECK(json["memory"][0][key].get<std::int64_t>() > 0);
  }
  for (const Json& line : json["communication"]) {
    for (const char* key :
         {"axis", "op", "phase", "calls", "bytes", "seconds", "exposed_seconds"}) {
      CHECK(line.contains(key));
    }
  }
}

TEST_CASE("The printed plan is short and says what matters") {
  const Experiment e = experiment(llama({dp(2), tp(4)}, 2));
  const std::string text = print(*e.plan, mw::predict(*e.plan, SharedCores(round_device())));
  INFO(text);
  CHECK(std::count(text.begin(), text.end(), '\n') <= 30);
  for (const char* part : {"{ dp { 2, bucket = \"64KiB\" }, tp(4) }", "8 ranks", "batch -> dp (dp)",
                           "vocab -> tp (tp)", "2 microbatches of 2", "activations", "all-reduce",
                           "gradients", "MFU"}) {
    CHECK(text.find(part) != std::string::npos);
  }
}

TEST_CASE("Predicting does not grow with the ranks") {
  Setup setup = llama({dp(2), tp(4)});
  setup.options["layers"] = 32;
  setup.options["hidden"] = 128;
  setup.microbatch = 1;
  const auto now = [] {  // of this thread's work alone: no load of the machine is in it
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  };
  auto milliseconds = [&](const Setup& s) {
    const Experiment e = experiment(s);
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      const double start = now();
      mw::predict(*e.plan, SharedCores(round_device()));
      best = std::min(best, now() - start);
    }
    return best;
  };
  const double eight = milliseconds(setup);
  setup.options["heads"] = 64;
  setup.options["kv_heads"] = 32;
  setup.batch = 2048;
  setup.plan = {dp(2048), tp(8)};
  setup.options["ffn"] = 96;
  CHECK(milliseconds(setup) < 3 * std::max(eight, 5.0));  // 16,384 ranks
}

TEST_CASE("An update reads and writes each state of the optimizer once, in any precision") {
  // SGD has nothing but parameters and gradients; AdamW two states, as wide as what is updated.
  for (const Precision precision :
       {Precision::fp64, Precision::fp32, Precision::bf16, Precision::fp16}) {
    const auto seconds = [&](const std::string& optimizer) {
      Setup setup = llama({});
      setup.precision = precision;
      setup.optimizer = optimizer;
      setup.optimizer_options = {{"lr", 1e-3}};
      return predict(setup, round_machine());
    };
    const Prediction adamw = seconds("adamw"), sgd = seconds("sgd");
    const double state = precision == Precision::fp64 ? 8 : 4;
    CHECK(adamw.step_seconds - sgd.step_seconds ==
          Approx(2 * 2 * state * static_cast<double>(adamw.parameters) / 1e10));
  }
}

TEST_CASE("What lies in host memory counts where ranks are threads of one machine") {
  const Experiment e = experiment(llama({zero(2, 3, 1, 1, false, 1 << 12, "parameters")}));
  const Prediction shared = mw::predict(*e.plan, SharedCores(round_device()));
  const Prediction own = mw::predict(*e.plan, round_machine());
  const MemoryForecast& memory = shared.fullest().memory;
  REQUIRE(memory[Category::host] > 0);
  CHECK(shared.memory_needed == 2 * (memory.peak + memory[Category::host]));
  // Its peak is another: kernels' scratch is measured on this machine alone.
  CHECK(own.memory_needed == own.fullest().memory.peak);
}

TEST_CASE("How much of the memory is an estimate is said where it matters") {
  Setup small = llama({dp(2)}), large = llama({dp(2)});
  large.sequence = 4096;  // its attention is too large to be tried
  const MemoryForecast tried = predict(small).fullest().memory;
  CHECK(tried.measured);
  CHECK(tried.estimated == 0);
  Prediction p = predict(large);
  const MemoryForecast& forecast = p.fullest().memory;
  CHECK_FALSE(forecast.measured);
  CHECK(forecast.estimated > 0);
  CHECK(forecast.estimated < forecast.peak);
  for (StageForecast& stage : p.stages) {
    stage.memory.peak = 100 << 20;
    stage.memory.estimated = 1 << 20;
  }
  CHECK(estimated_text(p).empty());
  p.stages.back().memory.estimated = 3 << 20;
  CHECK_THAT(estimated_text(p), Catch::Contains("of scratch and peak, 3 MiB are an estimate"));
  // It counts beside the peak of its own stage.
  p.stages.back().memory.estimated = 1 << 20;
  p.stages.push_back(p.stages.back());
  p.stages.back().memory.peak = 20 << 20;
  CHECK_THAT(estimated_text(p), Catch::Contains("of scratch and peak, 1 MiB are an estimate"));
}
