// Plans for the predictor's tests.
#pragma once

#include <string>
#include <vector>

#include "predict/shared_cores.h"
#include "support/setup.h"

namespace mw::test {

inline Setup llama(std::vector<StrategyChoice> plan, std::int64_t microbatch = 0) {
  Setup setup;
  setup.options = {{"layers", 3},   {"hidden", 64}, {"heads", 8},
                   {"kv_heads", 4}, {"ffn", 96},    {"vocab", 128}};
  setup.plan = std::move(plan);
  setup.batch = 8;
  setup.sequence = 32;
  setup.microbatch = microbatch;
  setup.precision = Precision::fp32;
  return setup;
}

inline Setup gpt(std::vector<StrategyChoice> plan, std::int64_t microbatch = 0) {
  Setup setup = llama(std::move(plan), microbatch);
  setup.make_gpt();
  return setup;
}

// A machine with round numbers, so that times can be worked out by hand.
inline Device round_device(int cores = 2) {
  Device d;
  d.name = "round";
  d.gemm16 = d.gemm32 = d.gemm64 = {1e11, 1e-6};
  d.pointwise16 = d.pointwise32 = d.pointwise64 = 1e10;
  d.bandwidth = d.bandwidth_at_once = 1e10;
  d.op_overhead = 1e-6;
  d.latency = 1e-5;
  d.cores = cores;
  d.memory = 16LL << 30;
  return d;
}

}  // namespace mw::test
