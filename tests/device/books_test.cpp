// What a rank on an accelerator books: its memory by category, its limit, and times, which events
// tell.
#include "meshwright/engine/host.h"
#include "on_devices.h"
#include "support/problems.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

const NamedMix& mix_named(const std::string& name) {
  static const std::vector<NamedMix> mixes = all_mixes();
  const auto found =
      std::find_if(mixes.begin(), mixes.end(), [&](const NamedMix& m) { return m.name == name; });
  REQUIRE(found != mixes.end());
  return *found;
}

}  // namespace

TEST_CASE("What lasts, and what lies in host memory, is booked on an accelerator as on the CPU") {
  const std::string name = GENERATE(as<std::string>{}, "zero 3", "zero 1, optimizer in host memory",
                                    "zero 3, parameters in host memory", "offload, dp 2");
  const Experiment e = experiment(mix_named(name).setup);
  const Peaks on_cpu = peaks_of(e);
  const OnDevices on_devices(Ranks::together);
  const Peaks on_device = peaks_of(on_devices(e));
  for (const auto& [rank, peaks] : on_cpu) {
    for (const Category c :
         {Category::parameters, Category::gradients, Category::optimizer, Category::host}) {
      INFO(name << ", rank " << rank << ", " << name_of(c));
      CHECK(on_device.at(rank)[static_cast<int>(c)] == peaks[static_cast<int>(c)]);
    }
    // Other kernels are called there, which need other scratch.
    CHECK(on_device.at(rank)[static_cast<int>(Category::activations)] > 0);
  }
}

TEST_CASE("A limit holds on an accelerator too") {
  const OnDevices on_devices(Ranks::together);
  Experiment e = on_devices(experiment(mix_named("dp 2, overlapped").setup));
  e.memory = 100'000;
  RankRuntime runtime = runtime_of(e, *e.plan);
  CHECK(thrown([&] {
          with_ranks(
              runtime, e, *e.plan, nullptr,
              [](RankRun& executor, Ledger&) { executor.step(0, 1e-3); }, true);
        }) == "memory.exceeded memory");
}

TEST_CASE("Times of a step are in order and within it") {
  const OnDevices on_devices(Ranks::apart);
  Experiment e = on_devices(experiment(mix_named("pp 2, 1f1b").setup));
  e.trace = {1};
  with_ranks(e, *e.plan, nullptr, [&](RankRun& executor, Ledger& ledger) {
    executor.step(0, 1e-3);
    ledger.clear_step();
    const double begin = seconds_now();
    const StepOutcome outcome = executor.step(1, 1e-3);
    const double whole = seconds_now() - begin;
    double last = 0, work = 0;
    bool in_order = true;
    for (const RunTime& time : outcome.runs) {
      in_order = in_order && last <= time.start && time.start <= time.end;
      last = time.end;
    }
    for (const auto& [key, use] : ledger.work()) work += use.seconds;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    CHECK(in_order);
    CHECK(last <= whole);
    CHECK(work > 0);
    CHECK(work <= last);
    CHECK_FALSE(outcome.instructions.empty());
  });
}
