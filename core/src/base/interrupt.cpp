// Turns the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 into a stop request that long computations
// poll. A second signal ends the process at once, unless it is a copy of the first.
#include "meshwright/engine/interrupt.h"

#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "meshwright/error.h"

namespace mw {
namespace {

std::atomic<bool> stop = false;
std::atomic<int> stopped_by = 0;
std::atomic<const char*> said = stop_words;
static_assert(std::atomic<const char*>::is_always_lock_free, "read in a signal handler");
// The last signal other than SIGUSR1, and when it came.
std::atomic<int> urged_by = 0;
std::atomic<std::int64_t> urged_at = 0;  // milliseconds
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "set in a signal handler");

// Milliseconds in which a second equal signal counts as a copy of the first: a batch system signals
// the processes of a job and also their launcher, which passes the signal on.
constexpr std::int64_t same_signal = 1000;

std::int64_t milliseconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1000} + now.tv_nsec / 1'000'000;
}

// Whether a signal asks to end the process at once, after the signals before it. SIGUSR1, a batch
// system's early warning, never does, nor does a first SIGTERM after it, at the time limit. A
// second Ctrl-C always does.
bool urges(int number) {
  if (number == SIGUSR1) return false;
  const std::int64_t now = milliseconds_now(), before = urged_at.exchange(now);
  const int last = urged_by.exchange(number);
  return last != 0 && (number == SIGINT || number != last || now - before > same_signal);
}

extern "C" void on_nothing(int) {}

extern "C" void on_signal(int number) {
  if (urges(number)) {
    std::signal(number, SIG_DFL);
    std::raise(number);
    return;
  }
  if (stop.exchange(true)) return;
  stopped_by = number;
  const char* const words = said;
  if (*words == '\0') return;
  // The const_cast is safe, because writev only reads the buffers.
  char end[] = "\n";
  const iovec parts[] = {{end, 1}, {const_cast<char*>(words), std::strlen(words)}, {end, 1}};
  // An error of the write is ignored: nothing can be done about a closed terminal. The interrupted
  // code may be about to read errno.
  const int before = errno;
  [[maybe_unused]] const auto written = ::writev(STDERR_FILENO, parts, 3);
  errno = before;
}

}  // namespace

bool stop_requested() {
  return stop.load(std::memory_order_relaxed);
}
void throw_if_stopped() {
  if (stop_requested()) throw Stopped("interrupted");
}
int exit_code_ending_by(const Error& error) {
  return error.problems().front().code == "run.stopped" ? exit_interrupted : error.exit_code();
}
bool ends_all(const Error& error) {
  const std::string& code = error.problems().front().code;
  return code == "run.stopped" || code == "function.timeout";
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
  urged_by = 0;
}
const char* stop_signal() {
  switch (stopped_by.load()) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "";
  }
}

OnStopSay::OnStopSay(const char* words) : before_(said.exchange(words)) {}
OnStopSay::~OnStopSay() {
  said = before_;
}

void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  // Without SA_RESTART, interrupted reads return, so that a script that waits for input can stop.
  action.sa_flags = 0;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  struct sigaction known {};
  sigaction(SIGHUP, nullptr, &known);
  if (known.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  // A handler, not SIG_IGN, which the programs that a script starts would inherit.
  action.sa_handler = on_nothing;
  action.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace mw
