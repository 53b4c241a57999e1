// Memory that the processes of one machine share: a ring of bytes from each process to each other,
// and a doorbell for each process, on which it sleeps until there is something to do. Sleeping
// costs nothing, unlike polling: there may be more processes than cores.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "meshwright/process_link.h"

namespace mpi {

using mw::transport::Doorbell;

enum class FrameType : std::uint32_t { message, message_part, data };

struct FrameHead {
  std::uint32_t bytes = 0;  // bytes of the frame after the head
  FrameType type = FrameType::message;
  std::uint32_t handle = 0;  // data: the receiver's handle of the round
  std::uint32_t stream = 0;  // data: the StreamKind
};
static_assert(sizeof(FrameHead) == 16);

// One direction between two processes: frames, first in first out. One thread of one process
// writes, one of another reads.
class Ring {
 public:
  // Bytes that a frame may have now; -1: no room for an empty frame. If fewer than `wanted`, the
  // reader's pop() will say when there is more room.
  std::int64_t room(std::int64_t wanted);
  void write(const FrameHead& head, const std::byte* bytes);

  bool empty() const {
    return tail_.load(std::memory_order_acquire) == head_.load(std::memory_order_relaxed);
  }
  FrameHead front() const;
  // Copies `count` bytes of the front frame from `offset`.
  void copy(std::int64_t offset, std::byte* to, std::int64_t count) const;
  // Removes the front frame. True if the writer waits for room: ring its doorbell.
  bool pop();

  static std::int64_t bytes_for(std::int64_t capacity) {
    return static_cast<std::int64_t>(sizeof(Ring)) + capacity;
  }
  void set_capacity(std::int64_t capacity) { capacity_ = capacity; }
  std::int64_t capacity() const { return capacity_; }

 private:
  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(this + 1); }

  alignas(64) std::atomic<std::int64_t> tail_{0};  // bytes written so far
  alignas(64) std::atomic<std::int64_t> head_{0};  // bytes read so far
  std::atomic<std::uint32_t> writer_waits_{0};
  alignas(64) std::int64_t capacity_ = 0;  // a multiple of 16
};

// This process' mapping of the shared memory of its machine.
class SharedArea {
 public:
  // Creates the memory, in one process of the machine. Returns its name, which is new; "" if the
  // system has no such memory.
  static std::string create(int processes, std::int64_t capacity);
  static void remove_name(const std::string& name);
  // maps it; see valid()
  SharedArea(const std::string& name, int processes, std::int64_t capacity);
  ~SharedArea();
  SharedArea(const SharedArea&) = delete;
  SharedArea& operator=(const SharedArea&) = delete;

  bool valid() const { return memory_ != nullptr; }
  Doorbell& doorbell(int process) const;
  Ring& ring(int from, int to) const;
  // Bytes of a ring: few where processes are many, so that they do not fill a small /dev/shm.
  static std::int64_t capacity_for(int processes);

 private:
  static std::int64_t total(int processes, std::int64_t capacity);
  std::byte* memory_ = nullptr;
  int processes_ = 0;
  std::int64_t capacity_ = 0;
};

}  // namespace mpi
