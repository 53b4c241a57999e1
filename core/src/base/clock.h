// Seconds of the clock that all threads of a process, and all processes of a machine, share.
#pragma once

#include <chrono>

namespace mw {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace mw
