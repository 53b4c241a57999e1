// A library that is loaded into the processes of a disturbed run (LD_PRELOAD): their wall clock is
// off by the number of seconds in a file, which may change at any time. Monotonic clocks are left
// alone. Links nothing but the C library.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

const volatile std::int64_t* offset = nullptr;  // offset in seconds; null: none

__attribute__((constructor)) void open_offset() {
  const char* const path = std::getenv("MESHWRIGHT_CLOCK_OFFSET");
  const int file = path == nullptr ? -1 : ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void* const at = ::mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, file, 0);
  ::close(file);
  if (at != MAP_FAILED) offset = static_cast<const volatile std::int64_t*>(at);
}

std::int64_t seconds_off() {
  return offset == nullptr ? 0 : *offset;
}

using ClockGettime = int(clockid_t, timespec*);

int real_time(clockid_t clock, timespec* time) {
  static ClockGettime* real = nullptr;  // no lock: every thread finds the same address
  if (real == nullptr) real = reinterpret_cast<ClockGettime*>(::dlsym(RTLD_NEXT, "clock_gettime"));
  if (real == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  return real(clock, time);
}

}  // namespace

#define MESHWRIGHT_SEEN extern "C" __attribute__((visibility("default")))

MESHWRIGHT_SEEN int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int failed = real_time(clock, time);
  if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    time->tv_sec += seconds_off();
  return failed;
}

MESHWRIGHT_SEEN int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  timespec now{};
  if (real_time(CLOCK_REALTIME, &now) != 0) return -1;
  time->tv_sec = now.tv_sec + seconds_off();
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

MESHWRIGHT_SEEN time_t time(time_t* into) noexcept {
  timespec now{};
  if (real_time(CLOCK_REALTIME, &now) != 0) return -1;
  const time_t seconds = now.tv_sec + seconds_off();
  if (into != nullptr) *into = seconds;
  return seconds;
}
