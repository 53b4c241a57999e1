// Lets a thread sleep until a word changes, with a deadline. std::atomic::wait has no deadline, and
// yields the processor a few times before it sleeps; a waiting rank must free its core at once.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace mw::comm {

using Clock = std::chrono::steady_clock;

// Returns when `word` is not `expected`, when woken, when the deadline has passed, or spuriously,
// so the caller must check again.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
  if (left <= 0) return;
  timespec timeout{static_cast<time_t>(left / 1'000'000'000),
                   static_cast<long>(left % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected,
          &timeout, nullptr, 0);
}

inline void futex_wake(const std::atomic<std::uint32_t>& word, int sleepers = INT_MAX) {
  syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, sleepers,
          nullptr, nullptr, 0);
}

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

}  // namespace mw::comm
