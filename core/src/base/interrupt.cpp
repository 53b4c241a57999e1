#include "base/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "meshwright/error.h"

namespace mw {
namespace {

std::atomic<bool> stop = false;
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

extern "C" void on_signal(int number) {
  if (stop.exchange(true)) {
    std::signal(number, SIG_DFL);
    std::raise(number);
    return;
  }
  static constexpr char text[] = "\nstopping after this step; once more stops at once\n";
  // Nothing can be done about a closed terminal here.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, sizeof text - 1);
}

}  // namespace

bool stop_requested() {
  return stop.load(std::memory_order_relaxed);
}
void throw_if_stopped() {
  if (stop_requested()) throw Error(Stage::run, "interrupted");
}
const std::atomic<bool>* stop_flag() {
  return &stop;
}
void request_stop() {
  stop = true;
}
void forget_stop_request() {
  stop = false;
}

void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  // Interrupted reads return, so that a script that waits for input can stop too.
  action.sa_flags = 0;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace mw
