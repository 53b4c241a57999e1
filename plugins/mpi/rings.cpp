// Rings and doorbells in shared memory: one process copies frames in, the other copies them out.
#include "rings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <random>

namespace mpi {
namespace {

constexpr std::int64_t align(std::int64_t bytes) {
  return (bytes + 15) / 16 * 16;
}
constexpr std::int64_t head_bytes = sizeof(FrameHead);

}  // namespace

std::int64_t Ring::room(std::int64_t wanted) {
  const auto free = [&] {
    return capacity_ -
           (tail_.load(std::memory_order_relaxed) - head_.load(std::memory_order_seq_cst));
  };
  auto now = free();
  if (now < head_bytes + align(wanted)) {
    writer_waits_.store(1, std::memory_order_seq_cst);
    now = free();
  }
  return now < head_bytes ? -1 : now - head_bytes;
}

void Ring::write(const FrameHead& head, const std::byte* bytes) {
  const auto tail = tail_.load(std::memory_order_relaxed);
  std::memcpy(data() + tail % capacity_, &head, sizeof head);
  const auto at = (tail + head_bytes) % capacity_;
  const auto first = std::min<std::int64_t>(head.bytes, capacity_ - at);
  if (head.bytes > 0) {
    std::memcpy(data() + at, bytes, static_cast<std::size_t>(first));
    std::memcpy(data(), bytes + first, static_cast<std::size_t>(head.bytes - first));
  }
  tail_.store(tail + head_bytes + align(head.bytes), std::memory_order_release);
}

FrameHead Ring::front() const {
  FrameHead head;
  std::memcpy(&head, data() + head_.load(std::memory_order_relaxed) % capacity_, sizeof head);
  return head;
}

void Ring::copy(std::int64_t offset, std::byte* to, std::int64_t count) const {
  if (count == 0) return;  // `to` may be null
  const auto at = (head_.load(std::memory_order_relaxed) + head_bytes + offset) % capacity_;
  const auto first = std::min(count, capacity_ - at);
  std::memcpy(to, data() + at, static_cast<std::size_t>(first));
  if (first < count) std::memcpy(to + first, data(), static_cast<std::size_t>(count - first));
}

bool Ring::pop() {
  const auto head = head_.load(std::memory_order_relaxed) + head_bytes + align(front().bytes);
  head_.store(head, std::memory_order_seq_cst);
  // The writer is woken for half a ring at least, not for each frame.
  if (tail_.load(std::memory_order_acquire) - head > capacity_ / 2) return false;
  return writer_waits_.load(std::memory_order_seq_cst) != 0 &&
         writer_waits_.exchange(0, std::memory_order_seq_cst) != 0;
}

std::int64_t SharedArea::capacity_for(int processes) {
  constexpr std::int64_t whole = 48 << 20, most = 512 << 10, least = 16 << 10;
  const std::int64_t pairs = std::max(1, processes * (processes - 1));
  return std::clamp(whole / pairs, least, most) / 4096 * 4096;
}

std::int64_t SharedArea::total(int processes, std::int64_t capacity) {
  return std::int64_t{64} * processes + Ring::bytes_for(capacity) * processes * processes;
}

std::string SharedArea::create(int processes, std::int64_t capacity) {
  std::random_device random;
  std::string name = "/meshwright-" + std::to_string(getpid()) + "-" + std::to_string(random());
  const int file = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0) return "";
  // Takes the memory now: a full /dev/shm would else end a process by a signal, later.
  const bool there = posix_fallocate(file, 0, total(processes, capacity)) == 0;
  void* memory = there ? mmap(nullptr, static_cast<std::size_t>(total(processes, capacity)),
                              PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                       : MAP_FAILED;
  close(file);
  if (memory == MAP_FAILED) {
    shm_unlink(name.c_str());
    return "";
  }
  auto* at = static_cast<std::byte*>(memory);
  for (int p = 0; p < processes; ++p) new (at + std::ptrdiff_t{64} * p) Doorbell();
  at += std::ptrdiff_t{64} * processes;
  for (int r = 0; r < processes * processes; ++r) {
    (new (at + Ring::bytes_for(capacity) * r) Ring())->set_capacity(capacity);
  }
  munmap(memory, static_cast<std::size_t>(total(processes, capacity)));
  return name;
}

void SharedArea::remove_name(const std::string& name) {
  shm_unlink(name.c_str());
}

SharedArea::SharedArea(const std::string& name, int processes, std::int64_t capacity)
    : processes_(processes), capacity_(capacity) {
  const int file = name.empty() ? -1 : shm_open(name.c_str(), O_RDWR, 0600);
  if (file < 0) return;
  void* memory = mmap(nullptr, static_cast<std::size_t>(total(processes, capacity)),
                      PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory != MAP_FAILED) memory_ = static_cast<std::byte*>(memory);
}

SharedArea::~SharedArea() {
  if (valid()) munmap(memory_, static_cast<std::size_t>(total(processes_, capacity_)));
}

Doorbell& SharedArea::doorbell(int process) const {
  return *reinterpret_cast<Doorbell*>(memory_ + std::ptrdiff_t{64} * process);
}

Ring& SharedArea::ring(int from, int to) const {
  return *reinterpret_cast<Ring*>(memory_ + std::ptrdiff_t{64} * processes_ +
                                  Ring::bytes_for(capacity_) * (from * processes_ + to));
}

}  // namespace mpi
