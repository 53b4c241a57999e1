// The simulated accelerator, which tests/device has too, as a plugin. At its end the program tells
// how many ops ran on each device, how many bytes are left there, and what was out of order.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "meshwright/plugin.h"
#include "simulated.h"

namespace {

using mw::sim::devices;

void tell() {
  std::string text = "sim:";
  std::int64_t ops = 0;
  for (int d = 0; d < devices; ++d) {
    ops += mw::sim::counts(d).ops;
    text += " " + std::to_string(mw::sim::counts(d).ops);
  }
  if (ops == 0) return;
  text += " ops;";
  for (int d = 0; d < devices; ++d)
    text += " " + std::to_string(mw::sim::counts(d).allocated_bytes);
  text += " bytes left";
  for (const std::string& report : mw::sim::take_reports()) text += "\nsim: " + report;
  std::fprintf(stderr, "%s\n", text.c_str());
}

// Ranks take the eight devices in turn.
class Eight : public mw::sim::Simulated {
 public:
  Eight()
      : Simulated(std::getenv("SIM_DEVICES") == nullptr ? devices
                                                        : std::atoi(std::getenv("SIM_DEVICES"))) {}
  void load() const override {
    Simulated::load();
    static const int told = std::atexit(tell);
    (void)told;
  }

 protected:
  explicit Eight(int count) : Simulated(count) {}
};

// All ranks share one.
class One final : public Eight {
 public:
  One() : Eight(1) {}
};

// There is none on this machine.
class None final : public Eight {
 public:
  None() : Eight(0) {}
  std::string why_none() const override { return "Found no simulated devices"; }
  std::string needs() const override { return "simulated devices need no driver"; }
};

}  // namespace

MESHWRIGHT_PLUGIN("sim", "1.0.0", "eight simulated devices", mw::device<Eight>(),
                  mw::device<One>("sim_one", "a simulated device that all ranks share"),
                  mw::device<None>("sim_none", "a kind of which this machine has no device"))
