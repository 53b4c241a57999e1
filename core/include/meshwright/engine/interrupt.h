// The stop request: SIGINT, SIGTERM, SIGHUP and SIGUSR1 set it, and long computations poll it.
// Training then stops after the current step. A second signal kills the process at once. Exceptions
// are SIGUSR1, the first other signal after SIGUSR1, and a repetition of the same signal (other
// than SIGINT) within a second.
#pragma once

#include <atomic>

#include "meshwright/error.h"

namespace mw {

bool stop_requested();
const std::atomic<bool>* stop_flag();  // true from the first request on
void request_stop();                   // async-signal-safe
void forget_stop_request();            // for tests and the prompt of the REPL
// The signal that made the first request, as "SIGINT"; empty if no signal did.
const char* stop_signal();

// The message that the first signal prints on standard error, while an OnStopSay lives: it says
// what still comes to its end. A string literal; empty: nothing is printed, because another process
// prints it.
class OnStopSay {
 public:
  explicit OnStopSay(const char* words);
  ~OnStopSay();
  OnStopSay(const OnStopSay&) = delete;
  OnStopSay& operator=(const OnStopSay&) = delete;

 private:
  const char* before_;
};
inline constexpr const char* stop_words = "stopping; once more stops at once";
inline constexpr const char* stop_after_step = "stopping after this step; once more stops at once";

// Installs the signal handlers. SIGHUP stays ignored if it was (nohup). SIGPIPE no longer ends the
// process: a write to a pipe without a reader fails with an error, and a run continues.
void stop_on_signals();

constexpr int exit_interrupted = 130;
// The exit code of a process that ends because of `error`: exit_interrupted if the user stopped it
// ("run.stopped"), else Error::exit_code().
int exit_code_ending_by(const Error& error);
// Whether the error is a stop request, or says that a script's function did not return in time.
// Code that tries several alternatives and skips those that fail must rethrow such an error.
bool ends_all(const Error& error);

// Thrown by a computation that gives up because of a stop request, outside of training steps.
class Stopped : public Error {
 public:
  explicit Stopped(std::string what, std::string hint = "")
      : Error(Stage::run, "run.stopped", "", std::move(what), std::move(hint)) {}
};

}  // namespace mw
