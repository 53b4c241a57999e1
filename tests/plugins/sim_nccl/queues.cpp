// Runs what was put on simulated streams, after random delays.
#include "queues.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "meshwright/engine/host.h"

namespace mw::sim_nccl {
namespace {

// How many streams of a priority a device has: libtorch's 32, or fewer for a test.
std::size_t streams_of_a_priority() {
  const char* const given = std::getenv("SIM_NCCL_STREAMS");
  return given == nullptr ? 32 : std::strtoul(given, nullptr, 10);
}

}  // namespace

Queue::Queue(c10::Stream given) : stream(given), delays_(static_cast<std::uint32_t>(given.id())) {
  std::thread([this] { work(); }).detach();
}

void Queue::put(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void Queue::work() {
  const HostWait waits("simulated NCCL");  // this thread is none of a rank's
  const c10::StreamGuard guard(stream);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !tasks_.empty(); });
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(delays_() % 300));
    task();
    task = nullptr;
    lock.lock();
  }
}

Queue& next_queue(c10::Device device, bool urgent) {
  struct Pool {
    std::vector<std::unique_ptr<Queue>> queues;
    std::size_t next = 0;
  };
  static std::mutex mutex;
  static auto* const pools = new std::map<std::pair<c10::DeviceIndex, bool>, Pool>;
  const std::lock_guard lock(mutex);
  Pool& pool = (*pools)[{device.index(), urgent}];
  const std::size_t index = pool.next++ % streams_of_a_priority();
  if (index == pool.queues.size()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    pool.queues.push_back(std::make_unique<Queue>(guard.getNewStream(device)));
  }
  return *pool.queues[index];
}

}  // namespace mw::sim_nccl
