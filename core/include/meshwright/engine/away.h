// Waits in which a rank's thread gives up its core. If a process has more ranks than cores, the
// ranks take turns, and a rank that waits in a collective hands its core to another rank. Code that
// waits for anything else (a file, a thread, a message of another process) must say so by
// CoreRelease or wait_away; else the core stays taken, and other ranks wait for it until the
// process notices that no rank makes progress.
#pragma once

#include <condition_variable>
#include <mutex>

namespace mw {
namespace comm {
class Cores;
}

// While a CoreRelease lives, the calling rank's thread holds no core. Its destructor waits until
// the thread has a core again. A CoreRelease inside of another one, or in a thread that is not a
// rank's, does nothing.
class CoreRelease {
 public:
  CoreRelease();
  ~CoreRelease();
  CoreRelease(const CoreRelease&) = delete;
  CoreRelease& operator=(const CoreRelease&) = delete;

 private:
  comm::Cores* const cores_;  // null: nothing was handed on
};

// Waits as changed.wait(lock, there) does, with the lock held before and after, but gives up the
// rank's core if it must wait.
template <class There>
void wait_away(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, There there) {
  while (!there()) {
    lock.unlock();
    {
      const CoreRelease away;
      lock.lock();
      changed.wait(lock, there);
      lock.unlock();
    }
    lock.lock();  // what there() says may have changed while this waited for a core
  }
}

}  // namespace mw
