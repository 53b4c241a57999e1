// Waits in which a rank's thread holds no core. Where a process has more ranks than cores they run
// in turns, and a rank hands its core on when it waits in a collective. What waits for anything
// else (a file, a thread, a word of another process) says so by these; else the core stays taken,
// and the ranks behind it do not run until it is noticed that nothing happens.
#pragma once

#include <condition_variable>
#include <mutex>

namespace mw {
namespace comm {
class Cores;
}

// While it lives, the calling rank's thread waits and holds no core; after that it has one again,
// which it may wait for. Another one within it, and one in a thread that is no rank's, do nothing.
class Away {
 public:
  Away();
  ~Away();
  Away(const Away&) = delete;
  Away& operator=(const Away&) = delete;

 private:
  comm::Cores* const cores_;  // null: nothing was handed on
};

// Waits on `changed` as std::condition_variable::wait does, with the lock held before and after,
// and away where it must wait at all.
template <class There>
void wait_away(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, There there) {
  while (!there()) {
    lock.unlock();
    {
      const Away away;
      lock.lock();
      changed.wait(lock, there);
      lock.unlock();
    }
    lock.lock();  // what there() says may have changed while this waited for a core
  }
}

}  // namespace mw
