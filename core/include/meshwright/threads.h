// Threads: an error says which limit is reached where the system starts no more of them.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "meshwright/error.h"

namespace mw {

// Throws Error (environment, "thread.start") if the system starts no more threads.
std::jthread start_thread(std::function<void()> work);

// Does the work in a thread of its own, for what a thread keeps to itself. Throws what the work
// throws, and as start_thread() does.
void in_own_thread(const std::function<void()>& work);

// That the system gives no more threads or processes (`what`), and the limits on them. `code`:
// "thread.start" or "process.start"; `reason`: as errno has it.
Error not_started(const std::string& code, const std::string& what, int reason);

}  // namespace mw
