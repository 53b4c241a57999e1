// Threads: an error says which limit is reached where the system starts no more of them.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "meshwright/error.h"

namespace mw {

// Throws Error (environment, "thread.start") if the system starts no more threads.
std::thread start_thread(std::function<void()> work);

// Does the work in a thread of its own, for what a thread keeps to itself. Throws what the work
// throws, and as start_thread() does.
void in_own_thread(const std::function<void()>& work);

// Threads that share some work. They have ended when this is destroyed.
class Threads {
 public:
  Threads() = default;
  ~Threads() { join(); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  void start(std::function<void()> work) { all_.push_back(start_thread(std::move(work))); }
  void join();

 private:
  std::vector<std::thread> all_;
};

// That the system gives no more threads or processes (`what`), and the limits on them. `code`:
// "thread.start" or "process.start"; `reason`: as errno has it.
Error not_started(const std::string& code, const std::string& what, int reason);

}  // namespace mw
