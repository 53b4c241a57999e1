// Starts threads, and reports the limit that is reached if the system starts no more.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "meshwright/error.h"

namespace mw {

// Throws Error (environment, "thread.start") if the system starts no more threads.
std::jthread start_thread(std::function<void()> work);

// Runs `work` in a new thread and waits for it, so that the caller's thread-local state does not
// change. Throws what `work` throws, and as start_thread().
void in_own_thread(const std::function<void()>& work);

// An error that the system starts no more threads or processes, with the limits on these. `what`:
// what could not be started; `code`: "thread.start" or "process.start"; `reason`: errno.
Error not_started(const std::string& code, const std::string& what, int reason);

}  // namespace mw
