// Ranks of several processes tell each other which devices they have.
#include "meshwright/member_devices.h"

#include <catch2/catch.hpp>

#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "meshwright/error.h"
#include "support/problems.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT
using Catch::Contains;
using namespace std::chrono_literals;

namespace {

// What each rank of a group throws, if rank r is on devices[r]; those without one do not come.
std::vector<std::string> met(
    const std::vector<MemberDevice>& devices, const std::function<void()>& check = [] {},
    std::chrono::milliseconds timeout = 60s) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<int> group;
  for (int rank = 0; rank < static_cast<int>(devices.size()); ++rank) group.push_back(rank);
  std::vector<std::string> ends(devices.size());
  std::vector<std::thread> threads;
  for (const int rank : group) {
    const MemberDevice& device = devices[static_cast<std::size_t>(rank)];
    if (device.uuid.empty()) continue;
    threads.emplace_back([&, rank] {
      try {
        meet_on_devices({*store, "dp/0-1", "dp", group, timeout, check}, rank, device);
      } catch (const Error& error) {
        ends[static_cast<std::size_t>(rank)] = codes(error.problems()) + ": " + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

}  // namespace

TEST_CASE("Each process sees its own GPU as number 0: different UUIDs are different GPUs") {
  CHECK(met({{"GPU-a", "GPU 0 of node1"},
             {"GPU-b", "GPU 0 of node1"},
             {"GPU-c", "GPU 0 of node1"}}) == std::vector<std::string>(3));
}

TEST_CASE("One GPU under two numbers and two names of its machine is one GPU") {
  for (const std::string& end : met({{"GPU-a", "GPU 0 of node1"}, {"GPU-a", "GPU 3 of box"}}))
    CHECK_THAT(end, Contains("device.shared device: ") &&
                        Contains("ranks 0 and 1 of axis 'dp' are both on GPU 3 of box (GPU-a)"));
}

TEST_CASE("A member that does not come to a group is named, and a run that is over ends the wait") {
  const auto ends = met(
      {{"GPU-a", "GPU 0"}, {"", ""}, {"", ""}}, [] {}, 300ms);
  CHECK_THAT(ends[0], Contains("collective.timeout") &&
                          Contains("rank 0 waited for 0.3 s for ranks 1 and 2 to join axis 'dp'"));
  const auto over = met({{"GPU-a", "GPU 0"}, {"", ""}},
                        [] { throw Error(Stage::run, "test.over", "", "the run is over"); });
  CHECK_THAT(over[0], Contains("the run is over"));
}
