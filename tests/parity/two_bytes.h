// What the tests of bf16 and fp16 run: a small model whose losses are compared over some
// tens of steps.
#pragma once

#include <vector>

#include "support/setup.h"
#include "support/train.h"

namespace mw::test {

inline Setup small_in(std::vector<StrategyChoice> plan, Precision precision) {
  Setup setup;
  setup.options = {{"layers", 2},   {"hidden", 48}, {"heads", 4},
                   {"kv_heads", 2}, {"ffn", 64},    {"vocab", 64}};
  setup.batch = 8;
  setup.sequence = 16;
  setup.microbatch = 2;
  setup.plan = std::move(plan);
  setup.precision = precision;
  return setup;
}

// At a rate of `lr` throughout.
inline std::vector<StepReport> steps_of(const Setup& setup, std::int64_t steps, double lr) {
  Experiment e = experiment(setup);
  e.steps = steps;
  e.schedule = [lr](std::int64_t) { return lr; };
  std::vector<StepReport> list;
  mw::test::train(e, nullptr, [&](const StepReport& report) { list.push_back(report); });
  return list;
}

}  // namespace mw::test
