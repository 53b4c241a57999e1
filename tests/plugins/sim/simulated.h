// A simulated accelerator: PyTorch's PrivateUse1 device, on host memory that the host may not
// touch. Every op runs at once on the calling thread. Streams and events are vector clocks, so an
// access that no event, wait or host synchronisation orders after those that it conflicts with, a
// free while another stream still uses the memory, and a wait of the host that nobody declared
// (HostWait in meshwright/engine/host.h) are reported, the same in every run, in whatever order the
// threads ran.
//
// Not seen: what real asynchrony does to time, the numerics of other kernels, hangs, writes that an
// op's schema does not tell, and accesses of the host to its own memory.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "meshwright/platform.h"

namespace mw::sim {

constexpr int devices = 8;

// Once per process, before any tensor on a device: names the backend "sim" and makes it the
// process's accelerator.
void install();
at::Device device(int index);

// The simulated devices, `count` of which ranks take in turn.
class Simulated : public Platform {
 public:
  explicit Simulated(int count) : count_(count) {}
  at::DeviceType type() const override { return at::kPrivateUse1; }
  void load() const override { install(); }
  int count() const override { return count_; }
  std::int64_t bytes(at::DeviceIndex) const override { return std::int64_t{1} << 36; }
  // A test may say how much of them other programs have.
  std::int64_t free_bytes(at::DeviceIndex) const override {
    if (std::getenv("SIM_FAULTY") != nullptr) throw std::runtime_error("the device is faulty");
    const char* used = std::getenv("SIM_USED_BYTES");
    return (std::int64_t{1} << 36) - (used == nullptr ? 0 : std::strtoll(used, nullptr, 10));
  }

 private:
  const int count_;
};

// Each thread has a host clock of its own: what it has synchronised with.

// What was found since the last call, in the order found.
std::vector<std::string> take_reports();

// Forgets streams and clocks, between runs whose threads have ended. Returns how many blocks of
// devices are still allocated: there should be none.
std::int64_t reset();

struct Counts {
  std::int64_t ops = 0;
  std::int64_t allocated_bytes = 0, peak_bytes = 0, blocks = 0;
  std::int64_t waits = 0;             // of streams for events
  std::int64_t undeclared_waits = 0;  // of the host
};
Counts counts(int device);
// Waits of the host by what declared them.
std::map<std::string, std::int64_t> host_waits();

// The stream does not wait for the event, although it should: one such wait at a time is left out.
// False if the wait would order nothing that is not in order already.
bool leave_out(c10::Stream stream, const c10::Event& event);
// Whether other waits have since ordered all that this one would have.
bool made_up_for();

// While it lives, waits of this thread for a device are reported unless they are declared.
class NoHostWaits {
 public:
  NoHostWaits();
  ~NoHostWaits();
};

}  // namespace mw::sim
