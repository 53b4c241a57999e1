// The wish to stop, set by SIGINT, SIGTERM, SIGHUP and SIGUSR1 and polled by whoever runs long:
// training stops after the current step. A second signal kills the process at once, but for
// SIGUSR1, the first one that is not SIGINT again within a second, and the first after SIGUSR1.
#pragma once

#include <atomic>

#include "meshwright/error.h"

namespace mw {

bool stop_requested();
const std::atomic<bool>* stop_flag();  // true from the first request on
void request_stop();                   // async-signal-safe
void forget_stop_request();            // for tests and the prompt of the REPL
// "SIGINT", the signal of the first request; empty if it was none.
const char* stop_signal();

// What the first signal is answered with on standard error, until the end of the scope: what then
// comes to its end. A literal; empty: nothing, as another process says it.
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

// Installs the handlers. SIGHUP is left alone where it was ignored (nohup). SIGPIPE no
// longer ends the process: a write to a pipe without a reader fails with an error,
// and a run goes on.
void stop_on_signals();

constexpr int exit_interrupted = 130;
// The exit code of a process that ends by the error: exit_interrupted where the user wished the
// end ("run.stopped"), else what the error stands for.
int exit_code_ending_by(const Error& error);
// Whether it is the wish to stop, or says that a script's function did not return in time. Whoever
// tries something and does without what fails throws such an error on: it is not about what was
// tried.
bool ends_all(const Error& error);

// Thrown by what gave up because of the wish to stop, where no step will come to an end.
class Stopped : public Error {
 public:
  explicit Stopped(std::string what, std::string hint = "")
      : Error(Stage::run, "run.stopped", "", std::move(what), std::move(hint)) {}
};

}  // namespace mw
