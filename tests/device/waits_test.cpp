// Every wait of one stream for another is needed: a run that leaves one out is found.
#include <array>
#include <atomic>
#include <map>

#include "on_devices.h"
#include "support/passes.h"
#include "support/sample.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

// Whether the host itself waits; what comes of leaving that out is told by the numbers.
bool is_of_host(const std::string& wait) {
  return wait.starts_with("the host awaits");
}

// Each wait's name in a run, with how often it comes.
std::map<std::string, int> waits_of(const Experiment& e, Ranks where) {
  const OnDevices on_devices(where);
  std::mutex mutex;
  std::map<std::string, int> waits;
  const LeaveOut listen = [&](const std::string& name, c10::Stream, const c10::Event&) {
    if (is_of_host(name)) return false;
    const std::lock_guard lock(mutex);
    ++waits[name];
    return false;
  };
  leave_waits_out(&listen);
  run(on_devices(e), 2);
  CHECK(reported() == "");
  return waits;
}

enum class Fate {
  found,    // something was reported
  idle,     // the wait would have ordered nothing new
  covered,  // another wait ordered the same before anything needed it
  missed,
};

// A run without the wait of that name, the first or a later one. Which waits others cover depends
// on which rank of a group came last: rounds that one rank carries out follow each other on its
// stream. There is a step more than waits are counted in: what is last on a stream in one step may
// be covered by the next one's alone.
Fate without(const Experiment& e, Ranks where, const std::string& name, int which) {
  const OnDevices on_devices(where);
  std::mutex mutex;
  int seen = 0;
  bool orders = false;
  const LeaveOut leave = [&](const std::string& wait, c10::Stream stream, const c10::Event& event) {
    if (wait != name) return false;
    const std::lock_guard lock(mutex);
    if (seen++ != which) return false;
    orders = sim::leave_out(stream, event);
    return true;
  };
  leave_waits_out(&leave);
  run(on_devices(e), 3);
  if (!reported().empty()) return Fate::found;
  return !orders ? Fate::idle : sim::made_up_for() ? Fate::covered : Fate::missed;
}

}  // namespace

TEST_CASE("A run without one of its waits is out of order, and found to be", "[sampled]") {
  std::vector<NamedMix> mixes = all_mixes();
  for (const DirectedMix& mix : directed_mixes()) mixes.push_back({mix.mix.name, directed(mix)});
  const int which = GENERATE_COPY(range(0, static_cast<int>(mixes.size())));
  const Ranks where = GENERATE(Ranks::apart, Ranks::together);
  if (left_out({which, 3 * (where == Ranks::apart)}, 10)) return;
  const bool all = !left_out({1}, 2);
  const NamedMix& mix = mixes[static_cast<std::size_t>(which)];
  DYNAMIC_SECTION(mix.name << (where == Ranks::apart ? ", apart" : ", together")) {
    const Experiment e = experiment(mix.setup);
    std::array<int, 4> fates{};
    int number = 0;
    for (const auto& [name, times] : waits_of(e, where)) {
      if (name.find("for comparison") != std::string::npos) continue;  // after the steps
      // The order of a stream protects no tensor: collectives_test.cpp looks at it.
      if (name.find("after the stream of") != std::string::npos) continue;
      for (int k = 0; k < times; ++k) {
        // A sample that has found none, as all of it ordered nothing new, goes on until it has.
        const bool sampled = number++ % 61 == 0 || (fates[0] == 0 && number > 122);
        if (!all && !sampled) continue;
        Fate fate = without(e, where, name, k);
        // In a first step, what lies ready since before it needs no order, which one run in
        // thousands shows: a hole shows again.
        if (fate == Fate::missed) fate = without(e, where, name, k);
        ++fates.at(static_cast<std::size_t>(fate));
        INFO(name << ", time " << k);
        CHECK(fate != Fate::missed);
      }
    }
    WARN(mix.name << ": " << fates[0] << " waits left out and found, " << fates[1]
                  << " ordered nothing new, " << fates[2] << " covered by others");
    CHECK(fates[0] > 0);
  }
}

TEST_CASE("A host that does not await gradients updates by others") {
  NamedMix mix = mixes::mix("", {zero_on_host(2, 2, "optimizer", true)}, 2);
  mix.setup.may_leave_out = false;
  mix.setup.optimizer_options = {{"lr", 1e-3}};
  const Experiment e = experiment(mix.setup);
  const Outcome on_cpu = run(e, 3);
  const OnDevices on_devices(Ranks::apart);
  must_be_alike(run(on_devices(e), 3), on_cpu);
  CHECK(reported() == "");
  std::atomic<int> left_out = 0;
  const LeaveOut leave = [&](const std::string& wait, c10::Stream, const c10::Event&) {
    if (!is_of_host(wait)) return false;
    ++left_out;
    return true;
  };
  leave_waits_out(&leave);
  const Outcome without = run(on_devices(e), 3);
  CHECK(left_out > 0);
  CHECK(without.losses[0] == Approx(on_cpu.losses[0]));  // nothing is updated before
  CHECK(relative(without.losses[2], on_cpu.losses[2], 0) > 1e-6);
  sim::take_reports();
}
