// Checks that the ranks of a group are on different devices, for libraries that connect no two
// ranks of one device (NCCL). The ranks tell each other their devices through a store.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace mw {

// A device as ranks of other processes can compare it. The device's number says nothing to them:
// under srun --gpus-per-task=1 each process sees its own GPU as number 0.
struct MemberDevice {
  std::string uuid;  // unique among the devices of all machines
  std::string text;  // name for messages: "GPU 0 of node7"
};

// How the members of one group find each other in a store.
struct DeviceMeeting {
  c10d::Store& store;
  std::string name;        // unique among the groups of the run
  std::string axis;        // name of the group's axis, for messages
  std::vector<int> group;  // ranks of the members
  std::chrono::milliseconds timeout;
  std::function<void()> check;  // throws if the run is over
};

// Tells the other members that rank `rank` is on `device`, and waits until all of them have told
// theirs. Throws Error (run): "device.shared" if two members are on one device; WaitedInVain, which
// names the missing members, if some do not come in time; and what check() throws.
void meet_on_devices(const DeviceMeeting& meeting, int rank, const MemberDevice& device);

}  // namespace mw
