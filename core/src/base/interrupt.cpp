// Turns the first SIGINT, SIGTERM or SIGHUP into a wish to stop that long work polls; a second
// one ends the process at once.
#include "base/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "meshwright/error.h"

namespace mw {
namespace {

std::atomic<bool> stop = false;
std::atomic<int> stopped_by = 0;
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

extern "C" void on_nothing(int) {}

extern "C" void on_signal(int number) {
  if (stop.exchange(true)) {
    std::signal(number, SIG_DFL);
    std::raise(number);
    return;
  }
  stopped_by = number;
  static constexpr char text[] = "\nstopping after this step; once more stops at once\n";
  // Nothing can be done about a closed terminal here, and who was interrupted may be about
  // to look at errno.
  const int before = errno;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, sizeof text - 1);
  errno = before;
}

}  // namespace

bool stop_requested() {
  return stop.load(std::memory_order_relaxed);
}
void throw_if_stopped() {
  if (stop_requested()) throw Stopped("interrupted");
}
const std::atomic<bool>* stop_flag() {
  return &stop;
}
void request_stop() {
  stop = true;
}
void forget_stop_request() {
  stop = false;
  stopped_by = 0;
}
const char* stop_signal() {
  switch (stopped_by.load()) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "";
  }
}

void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  // Interrupted reads return, so that a script that waits for input can stop too.
  action.sa_flags = 0;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction known {};
  sigaction(SIGHUP, nullptr, &known);
  if (known.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  // Handlers, not SIG_IGN, which the programs that a script starts would inherit.
  action.sa_handler = on_nothing;
  action.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

}  // namespace mw
