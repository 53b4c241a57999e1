// The streams of simulated communicators. What is put on a stream runs on a thread of its own, one
// after the other, later than its caller, and holds up what comes after it until it is over.
#pragma once

#include <c10/core/Stream.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

namespace mw::sim_nccl {

// A queue and its thread live until the process ends.
class Queue {
 public:
  explicit Queue(c10::Stream stream);

  const c10::Stream stream;
  void put(std::function<void()> task);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::mt19937 delays_;
};

// The queue of the next communicator on a device. libtorch has 32 streams of each priority for a
// device and gives them in turn, so that the 33rd communicator shares the first one's.
Queue& next_queue(c10::Device device, bool urgent);

}  // namespace mw::sim_nccl
