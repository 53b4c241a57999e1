// What a run asks of its platform, when, and what is said where the platform has nothing.
#include "run/devices.h"

#include <atomic>
#include <cstdlib>

#include "on_devices.h"
#include "support/problems.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT
using Catch::Contains;

namespace {

struct Asked {
  int loads = 0, repeats = 0;
  std::atomic<int> streams = 0, urgent = 0;
  std::vector<at::DeviceIndex> bytes;
};

// Two simulated devices that count what is asked of them.
class CountingPlatform final : public sim::Simulated {
 public:
  explicit CountingPlatform(Asked& asked) : Simulated(2), asked_(asked) {}
  void load() const override {
    ++asked_.loads;
    Simulated::load();
  }
  std::int64_t bytes(at::DeviceIndex device) const override {
    asked_.bytes.push_back(device);
    return 1000 + device;
  }
  c10::Stream new_stream(at::Device device, bool urgent) const override {
    ++(urgent ? asked_.urgent : asked_.streams);
    return Simulated::new_stream(device, urgent);
  }
  void make_sums_repeat() const override { ++asked_.repeats; }

 private:
  Asked& asked_;
};

class LackingPlatform final : public Platform {
 public:
  explicit LackingPlatform(bool has_backend) : has_backend_(has_backend) { set_name("wafer"); }
  at::DeviceType type() const override { return at::kXPU; }
  void load() const override {
    if (!has_backend_) throw Error(Stage::environment, "any", "", "no libwafer.so", "install it");
  }
  std::string why_none() const override { return "no wafer is plugged in"; }
  std::string needs() const override { return "wafers need a driver"; }

 private:
  const bool has_backend_;
};

std::string said_of(const Platform& platform) {
  try {
    check_devices(platform);
  } catch (const Error& error) {
    const Problem& problem = error.problems().front();
    return fmt::format("{} {}: {} [{}]", problem.code, problem.key, problem.message, problem.hint);
  }
  return "";
}

}  // namespace

TEST_CASE("A run loads its platform, and has all its streams from it") {
  const OnDevices on_devices(Ranks::apart);
  Asked asked;
  Experiment e = experiment(mixes::mix("", {dp(2)}).setup);
  e.platform = std::make_shared<CountingPlatform>(asked);
  CHECK(asked.loads == 0);
  run(e, 1);
  CHECK(asked.loads > 0);
  CHECK(asked.streams == 4);  // each rank has one for its work and one for copies to the host
  CHECK(asked.urgent == 2);   // each rank has one for its transfers
  CHECK(reported() == "");
}

TEST_CASE("The memory of those devices is asked for that ranks here take") {
  Asked asked;
  const CountingPlatform platform(asked);
  const Accelerators there = accelerators_of(platform, /*before=*/1, /*here=*/1);
  CHECK(there.count == 2);
  CHECK(there.bytes == 1001);
  CHECK(asked.bytes == std::vector<at::DeviceIndex>{1});
  CHECK(accelerators_of(platform, 1, 4).bytes == 1000);
}

TEST_CASE("Sums repeat where a variable asks for it") {
  Asked asked;
  const CountingPlatform platform(asked);
  check_devices(platform);
  CHECK(asked.repeats == 0);
  ::setenv("MESHWRIGHT_DETERMINISTIC", "1", 1);
  check_devices(platform);
  ::unsetenv("MESHWRIGHT_DETERMINISTIC");
  CHECK(asked.repeats == 1);
}

TEST_CASE("A platform without a backend or a device says what to do") {
  CHECK(said_of(*cpu_platform()).empty());
  CHECK(said_of(LackingPlatform(false)) ==
        "device.build device: device: this build has nothing for \"wafer\": no libwafer.so "
        "[install it; or write device = \"cpu\", or leave it out; mw.plan needs no device]");
  CHECK(said_of(LackingPlatform(true)) ==
        "device.none device: device: this machine has 0 devices of \"wafer\" that can be used: no "
        "wafer is plugged in [write device = \"cpu\", or leave it out; mw.plan needs no device; "
        "wafers need a driver]");
}
