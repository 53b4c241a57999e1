// Every wait of one stream for another is needed: a run that leaves one out is found.
#include <map>
#include <set>

#include "on_devices.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

// Of a run: each wait's name, with how often it comes.
std::map<std::string, int> waits_of(const Experiment& e, Ranks where) {
  const OnDevices devices(where);
  std::mutex mutex;
  std::map<std::string, int> waits;
  const LeaveOut listen = [&](const std::string& name) {
    const std::lock_guard lock(mutex);
    ++waits[name];
    return false;
  };
  leave_waits_out(&listen);
  run(e, 2);
  CHECK(reported().empty());
  return waits;
}

// What is reported without the wait of that name, the first or any later one.
std::string without(const Experiment& e, Ranks where, const std::string& name, int which) {
  const OnDevices devices(where);
  std::mutex mutex;
  int seen = 0;
  const LeaveOut leave = [&](const std::string& wait) {
    if (wait != name) return false;
    const std::lock_guard lock(mutex);
    return seen++ == which;
  };
  leave_waits_out(&leave);
  run(e, 2);
  return reported();
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
    int removed = 0, found = 0, number = 0;
    for (const auto& [name, times] : waits_of(e, where)) {
      for (int k = 0; k < times; ++k) {
        if (!all && number++ % 17 != 0) continue;
        ++removed;
        const std::string report = without(e, where, name, k);
        if (!report.empty()) {
          ++found;
        } else {
          WARN("not found: " << name << ", time " << k);
        }
      }
    }
    WARN(mix.name << ": " << removed << " waits left out, " << found << " found");
    CHECK(removed > 0);
  }
}
