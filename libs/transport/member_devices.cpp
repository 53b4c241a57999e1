// Compares the devices of a group's members, each of which has put its own into a store.
#include "meshwright/member_devices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "meshwright/backend.h"
#include "meshwright/error.h"
#include "meshwright/world.h"

namespace mw {
namespace {

constexpr std::chrono::milliseconds look_every{5};

std::string key_of(const DeviceMeeting& meeting, int rank) {
  return fmt::format("{}/{}", meeting.name, rank);
}

[[noreturn]] void late(const DeviceMeeting& meeting, int rank) {
  std::vector<int> missing;
  for (const int member : meeting.group)
    if (!meeting.store.check({key_of(meeting, member)})) missing.push_back(member);
  throw WaitedInVain(Stage::run, "collective.timeout", "",
                     fmt::format("rank {} waited for {} s for {} to join axis '{}'", rank,
                                 std::chrono::duration<double>(meeting.timeout).count(),
                                 comm::list_ranks(missing), meeting.axis));
}

}  // namespace

void meet_on_devices(const DeviceMeeting& meeting, int rank, const MemberDevice& device) {
  std::vector<std::string> keys;
  for (const int member : meeting.group) keys.push_back(key_of(meeting, member));
  meeting.store.set(key_of(meeting, rank), device.uuid + "\n" + device.text);
  comm::WaitLimit patience(meeting.timeout);
  while (!meeting.store.check(keys)) {
    meeting.check();
    if (patience.over()) late(meeting, rank);
    std::this_thread::sleep_for(look_every);
  }
  std::map<std::string, int> taken;  // UUID to the rank on that device
  for (std::size_t m = 0; m < keys.size(); ++m) {
    const std::string said = meeting.store.get_to_str(keys[m]);
    const std::size_t end = said.find('\n');
    const auto [there, is_new] = taken.emplace(said.substr(0, end), meeting.group[m]);
    if (is_new) continue;
    throw Error(
        Stage::run, "device.shared", "device",
        fmt::format("ranks {} and {} of axis '{}' are both on {} ({}), and NCCL connects no two "
                    "ranks of one GPU",
                    there->second, meeting.group[m], meeting.axis, said.substr(end + 1),
                    there->first),
        "one rank on each GPU, or all ranks that share one in one process");
  }
}

}  // namespace mw
