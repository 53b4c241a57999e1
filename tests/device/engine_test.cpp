// The engine on simulated accelerators: every mix computes what one rank on the CPU does, nothing
// that it does is out of order, and nothing waits for a device that docs/gpu.md does not list.
#include "on_devices.h"
#include "support/passes.h"
#include "support/sample.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

bool is_lossy(const Experiment& e) {
  return !lossy_hooks(*e.plan).names.empty();
}

}  // namespace

TEST_CASE("Mixes on accelerators equal one rank on the CPU, and no access is out of order",
          "[sampled]") {
  const std::vector<NamedMix> mixes = all_mixes();
  const int which = GENERATE_COPY(range(0, static_cast<int>(mixes.size())));
  const Ranks where = GENERATE(Ranks::apart, Ranks::together);
  if (left_out({which, where == Ranks::apart}, 2)) return;
  const NamedMix& mix = mixes[static_cast<std::size_t>(which)];
  DYNAMIC_SECTION(mix.name << (where == Ranks::apart ? ", apart" : ", together")) {
    const Experiment e = experiment(mix.setup);
    const bool lossy = is_lossy(e);
    const Outcome on_cpu = run(lossy ? e : on_one_rank(e), 2);
    const OnDevices on_devices(where);
    if (lossy) {
      must_be_alike(run(on_devices(e), 2), on_cpu);
    } else {
      must_be_alike(run(on_devices(on_one_rank(e)), 2), on_cpu);
      const VerifyOutcome outcome = verify(on_devices(e), 2);
      INFO(describe(outcome, e.plan->mix()));
      CHECK(outcome.equal);
      CHECK(std::max({outcome.loss, outcome.gradients, outcome.parameters}) <= 1e-10);
    }
    CHECK(reported() == "");
    CHECK(sim::reset() == 0);  // nothing is left on the devices
  }
}

TEST_CASE("Masters that come back from the device are cast once they are there") {
  const std::string offload = GENERATE(as<std::string>{}, "optimizer", "parameters");
  Setup setup = mixes::mix("", {zero_on_device(2, 3, offload)}).setup;
  setup.precision = Precision::bf16;
  const Experiment e = experiment(setup);
  const Outcome on_cpu = run(e, 3);
  const OnDevices on_devices(Ranks::apart);
  const Outcome on_device = run(on_devices(e), 3);
  CHECK(reported() == "");
  for (std::size_t step = 0; step < 3; ++step) {
    INFO(offload << ", step " << step);
    CHECK(on_device.losses[step] == Approx(on_cpu.losses[step]).epsilon(0.01));
  }
}

TEST_CASE("Inside a step nothing waits for the device but what is declared", "[sampled]") {
  const std::vector<NamedMix> mixes = all_mixes();
  const int which = GENERATE_COPY(range(0, static_cast<int>(mixes.size())));
  if (left_out({which}, 3)) return;
  const NamedMix& mix = mixes[static_cast<std::size_t>(which)];
  DYNAMIC_SECTION(mix.name) {
    const Experiment e = experiment(mix.setup);
    const OnDevices on_devices(Ranks::together);
    run(on_devices(e), 2);
    CHECK(reported() == "");
  }
}

TEST_CASE("Mixes with passes of a script on accelerators: no access is out of order", "[sampled]") {
  const std::vector<DirectedMix> mixes = directed_mixes();
  const int which = GENERATE_COPY(range(0, static_cast<int>(mixes.size())));
  const Ranks where = GENERATE(Ranks::apart, Ranks::together);
  if (left_out({which, where == Ranks::apart}, 2)) return;
  const DirectedMix& mix = mixes[static_cast<std::size_t>(which)];
  DYNAMIC_SECTION(mix.mix.name << (where == Ranks::apart ? ", apart" : ", together")) {
    const Experiment e = experiment(directed(mix));
    const Outcome on_cpu = run(e, 2);
    {
      const OnDevices on_devices(where);
      must_be_alike(run(on_devices(e), 2), on_cpu);
      CHECK(reported() == "");
      CHECK(sim::reset() == 0);
    }
  }
}
