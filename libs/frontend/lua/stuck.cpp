// A thread that ends the process where a script's code is stuck inside a C function.
#include "lua/stuck.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/threads.h"

namespace mw {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds between_looks{100};

// Never destroyed, as the thread that asks for it may outlive all statics.
struct Handler {
  std::mutex lock;
  OnStuck call;
};
Handler& handler() {
  static Handler& one = *new Handler;
  return one;
}

void tell(const Error& error) {
  OnStuck call;
  {
    const std::lock_guard guard(handler().lock);
    call = handler().call;
  }
  if (call) return call(error);
  std::fprintf(stderr, "error: %s\n", error.problems().front().text().c_str());
  ::_exit(exit_code_ending_by(error));
}

}  // namespace

OnStuck on_stuck(OnStuck given) {
  const std::lock_guard guard(handler().lock);
  return std::exchange(handler().call, std::move(given));
}

struct StuckWatch::Shared {
  struct Call {
    Clock::time_point deadline;
    double seconds = 0;
    std::string place;
  };

  const pid_t process = ::getpid();
  std::mutex lock;
  bool gone = false, verb = false;
  // The handler runs. Code that returns meanwhile waits for it, as the handler writes the run file
  // and uses what the stuck thread holds.
  bool ending = false;
  std::condition_variable over;
  int scripts = 0;
  std::optional<Call> call;
  Clock::time_point since = Clock::now();  // when the code that runs now began
  std::optional<Clock::time_point> stop_seen;

  // Locks, once no handler runs.
  std::unique_lock<std::mutex> after_handler() {
    std::unique_lock guard(lock);
    over.wait(guard, [this] { return !ending; });
    return guard;
  }

  // The error if the code that runs is stuck.
  std::optional<Error> look(Clock::time_point now) {
    if (!stop_requested()) {
      stop_seen.reset();
    } else if (!stop_seen) {
      stop_seen = now;
    }
    if (!call && (scripts == 0 || verb)) return std::nullopt;
    const std::string place = call ? call->place : "";
    if (stop_seen && now > std::max(*stop_seen, since) + after_stop) {
      return Error(Problem{Stage::run, "run.stopped", "",
                           call ? "interrupted in this function, which does not return"
                                : "interrupted in the script, which does not return",
                           "", place});
    }
    if (!call || now <= call->deadline) return std::nullopt;
    return Error(
        Problem{Stage::script, "function.timeout", "",
                fmt::format("this function has not returned {} s after its timeout of {} s: it is "
                            "inside a C function, which nothing can interrupt, so the process ends",
                            after_timeout.count(), format_number(call->seconds)),
                "mend it (string.find with many repeats backtracks for ever), or set a longer "
                "timeout",
                place});
  }
};

namespace {

template <class Shared>
void watch(const std::shared_ptr<Shared>& shared) {
  pthread_setname_np(::pthread_self(), "script watch");
  while (true) {
    std::this_thread::sleep_for(between_looks);
    std::optional<Error> stuck;
    {
      const std::lock_guard guard(shared->lock);
      if (shared->gone) return;
      stuck = shared->look(Clock::now());
      shared->ending = stuck.has_value();
    }
    if (!stuck) continue;
    tell(*stuck);
    const std::lock_guard guard(shared->lock);
    shared->ending = false;
    shared->over.notify_all();
    return;
  }
}

}  // namespace

StuckWatch::StuckWatch() = default;

StuckWatch::~StuckWatch() {
  if (!shared_ || shared_->process != ::getpid()) return;
  const std::lock_guard guard(shared_->lock);
  shared_->gone = true;
}

StuckWatch::Shared& StuckWatch::watched() {
  if (shared_ && shared_->process == ::getpid()) return *shared_;
  const auto before = std::exchange(shared_, std::make_shared<Shared>());
  if (before) {  // in a copy by fork() the same code runs on
    shared_->verb = before->verb;
    shared_->scripts = before->scripts;
  }
  start_thread([shared = shared_] { watch(shared); }).detach();
  return *shared_;
}

void StuckWatch::script_begins() {
  Shared& shared = watched();
  const std::lock_guard guard(shared.lock);
  if (shared.scripts++ == 0) shared.since = Clock::now();
}

void StuckWatch::script_ends() {
  Shared& shared = watched();
  const auto guard = shared.after_handler();
  --shared.scripts;
}

void StuckWatch::verb_begins() {
  Shared& shared = watched();
  const auto guard = shared.after_handler();
  shared.verb = true;
}

void StuckWatch::verb_ends() {
  Shared& shared = watched();
  const auto guard = shared.after_handler();
  shared.verb = false;
  shared.since = Clock::now();
}

void StuckWatch::function_begins(double seconds, std::string place) {
  Shared& shared = watched();
  const std::lock_guard guard(shared.lock);
  shared.since = Clock::now();
  shared.call = Shared::Call{
      shared.since +
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)) +
          after_timeout,
      seconds, std::move(place)};
}

void StuckWatch::function_ends() {
  Shared& shared = watched();
  const auto guard = shared.after_handler();
  shared.call.reset();
  shared.since = Clock::now();
}

}  // namespace mw
