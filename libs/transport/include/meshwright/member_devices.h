// The devices of a group's members: ranks tell each other by a store on which one they are, for
// libraries that connect no two ranks of one device.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace mw {

// A device as ranks of other processes know it. Its number says nothing to them: under srun
// --gpus-per-task=1 each process sees its own GPU as number 0.
struct MemberDevice {
  std::string uuid;  // of all devices of all machines, this one alone has it
  std::string text;  // for people: "GPU 0 of node7"
};

// Where the members of one group meet.
struct DeviceMeeting {
  c10d::Store& store;
  std::string name;        // no other group of the run has it
  std::string axis;        // for messages
  std::vector<int> group;  // ranks
  std::chrono::milliseconds timeout;
  std::function<void()> check;  // throws if the run is over
};

// Tells the members of the group that rank `rank` is on `device`, and waits until all of them have
// said theirs. Throws Error (run): "device.shared" if two members have one device; WaitedInVain,
// which names them, if some do not come; and what check() throws.
void meet_on_devices(const DeviceMeeting& meeting, int rank, const MemberDevice& device);

}  // namespace mw
