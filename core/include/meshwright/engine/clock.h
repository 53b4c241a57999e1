// Seconds of the clock that all threads of a process, and all processes of a machine, share, and
// seconds that they had a core.
#pragma once

#include <chrono>
#include <ctime>

namespace mw {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double core_seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Of all threads of the process.
inline double cpu_seconds_now() {
  return core_seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

}  // namespace mw
