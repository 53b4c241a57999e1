// The wish to stop, set by SIGINT and SIGTERM and polled by whoever runs long: training stops after
// the current step. A second signal kills the process at once.
#pragma once

#include <atomic>

namespace mw {

bool stop_requested();
// Throws Error (run, "interrupted") from the first request on: for what ends with nothing done, as planning
// does.
void throw_if_stopped();
const std::atomic<bool>* stop_flag();  // true from the first request on
void request_stop();                   // async-signal-safe
void forget_stop_request();            // for tests and the prompt of the REPL
// Installs the handlers.
void stop_on_signals();

}  // namespace mw
