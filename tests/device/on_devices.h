// Runs of the engine with ranks on simulated devices.
#pragma once

#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "check/observe.h"
#include "comm/streams.h"
#include "meshwright/engine/ranks.h"
#include "plugins/sim/simulated.h"
#include "support/mixes.h"

namespace mw::test {

enum class Ranks { apart, together };  // each on a device of its own; all on one

// While it lives, experiments may have their ranks on simulated devices.
class OnDevices {
 public:
  explicit OnDevices(Ranks ranks)
      : platform(std::make_shared<sim::Simulated>(ranks == Ranks::apart ? sim::devices : 1)) {
    sim::install();
    sim::reset();
    sim::take_reports();
  }
  ~OnDevices() { leave_waits_out(nullptr); }
  OnDevices(const OnDevices&) = delete;
  OnDevices& operator=(const OnDevices&) = delete;

  Experiment operator()(Experiment e) const {
    e.platform = platform;
    return e;
  }

  const std::shared_ptr<const Platform> platform;
};

// The experiment on one rank.
inline Experiment on_one_rank(Experiment e) {
  e.plan = one_rank_plan(*e.plan, false);
  e.step_plans = nullptr;
  return e;
}

// "" if nothing was reported since the last call; else the first of the reports.
inline std::string reported() {
  const auto reports = sim::take_reports();
  if (reports.empty()) return "";
  return fmt::format("{} reports, the first: {}", reports.size(), reports.front());
}

// What a few steps of a plan came to, brought together on the host.
struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> parameters;
};

// `steps` of the experiment's own plan and precision. Nothing of the steps may wait for a device
// that is not declared.
inline Outcome run(const Experiment& e, std::int64_t steps) {
  Outcome outcome;
  std::mutex mutex;
  with_ranks(e, *e.plan, nullptr, [&](RankRun& executor, Ledger&) {
    for (std::int64_t step = 0; step < steps; ++step) {
      const sim::NoHostWaits watch;
      const StepOutcome done = executor.step(step, e.schedule(step));
      const std::lock_guard lock(mutex);
      if (executor.rank() > 0) continue;
      outcome.losses.push_back(done.loss);
      outcome.norms.push_back(done.grad_norm);
    }
    const Program& program = executor.program();
    for_each_parameter(executor, false, [&](int p, const at::Tensor& whole) {
      const std::lock_guard lock(mutex);
      outcome.parameters[program.name_of_parameter(p)] = whole.clone();
    });
  });
  return outcome;
}

// The most of each category in two steps, by rank.
using Peaks = std::map<int, std::array<std::int64_t, category_count>>;
inline Peaks peaks_of(const Experiment& e) {
  Peaks peaks;
  std::mutex mutex;
  with_ranks(e, *e.plan, nullptr, [&](RankRun& executor, Ledger& ledger) {
    ledger.reset_peaks();
    for (std::int64_t step = 0; step < 2; ++step) executor.step(step, 1e-3);
    const std::lock_guard lock(mutex);
    for (int c = 0; c < category_count; ++c)
      peaks[executor.rank()][c] = ledger.memory(static_cast<Category>(c)).peak;
  });
  return peaks;
}

inline void must_be_alike(const Outcome& a, const Outcome& b) {
  REQUIRE(!a.losses.empty());
  REQUIRE(a.losses.size() == b.losses.size());
  for (std::size_t step = 0; step < a.losses.size(); ++step) {
    CHECK(relative(a.losses[step], b.losses[step], 0) <= 1e-10);
    CHECK(relative(a.norms[step], b.norms[step], 0) <= 1e-10);
  }
  REQUIRE(a.parameters.size() == b.parameters.size());
  for (const auto& [name, tensor] : a.parameters) {
    INFO(name);
    CHECK(relative(tensor, b.parameters.at(name), 1e-3) <= 1e-10);
  }
}

}  // namespace mw::test
