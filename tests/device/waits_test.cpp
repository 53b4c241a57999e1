// Every wait of one stream for another is needed: a run that leaves one out is found.
#include <map>
#include <set>

#include "on_devices.h"
#include "support/sample.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

// Of a run: each wait's name, with how often it comes.
std::map<std::string, int> waits_of(const Experiment& e, Ranks where) {
  const OnDevices devices(where);
  std::mutex mutex;
  std::map<std::string, int> waits;
  const LeaveOut listen = [&](const std::string& name, c10::Stream, const c10::Event&) {
    const std::lock_guard lock(mutex);
    ++waits[name];
    return false;
  };
  leave_waits_out(&listen);
  run(e, 2);
  CHECK(reported().empty());
  return waits;
}

struct Without {
  bool orders = false;  // something that was not in order already
  std::string report;
};

// A run without the wait of that name, the first or a later one. Whether it orders anything may
// depend on which rank came last, whose host has waited for its own stream before.
Without without(const Experiment& e, Ranks where, const std::string& name, int which) {
  const OnDevices devices(where);
  std::mutex mutex;
  int seen = 0;
  Without left;
  const LeaveOut leave = [&](const std::string& wait, c10::Stream stream, const c10::Event& event) {
    if (wait != name) return false;
    const std::lock_guard lock(mutex);
    if (seen++ != which) return false;
    left.orders = sim::orders(stream, event);
    return true;
  };
  leave_waits_out(&leave);
  run(e, 2);
  left.report = reported();
  return left;
}

}  // namespace

TEST_CASE("A run without one of its waits is out of order, and found to be", "[sampled]") {
  const std::vector<DeviceMix> mixes = device_mixes();
  const int which = GENERATE_COPY(range(0, static_cast<int>(mixes.size())));
  const Ranks where = GENERATE(Ranks::apart, Ranks::together);
  if (left_out({which, 3 * (where == Ranks::apart)}, 6)) return;
  const bool all = !left_out({1}, 2);
  const DeviceMix& mix = mixes[static_cast<std::size_t>(which)];
  DYNAMIC_SECTION(mix.name << (where == Ranks::apart ? ", apart" : ", together")) {
    const Experiment e = experiment(mix.setup);
    int removed = 0, found = 0, idle = 0, number = 0;
    for (const auto& [name, times] : waits_of(e, where)) {
      for (int k = 0; k < times; ++k) {
        if (!all && number++ % 17 != 0) continue;
        const Without left = without(e, where, name, k);
        if (!left.report.empty()) {
          ++removed;
          ++found;
        } else if (left.orders) {
          ++removed;
          WARN("not found: " << name << ", time " << k);
        } else {
          ++idle;
        }
      }
    }
    WARN(mix.name << ": " << removed << " waits left out, " << found << " found, " << idle
                  << " that ordered nothing new");
    CHECK(removed > 0);
  }
}
