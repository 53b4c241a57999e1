// Where the threads of ranks sleep and, where a process has more ranks than cores, the line in
// which they wait for a core: as many run at a time as there are cores. Whoever runs does so until
// it must wait for another rank, so that what it works on stays in the core's cache, and each wait
// costs one change of threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include <sched.h>
#include <sys/types.h>

#include "comm/futex.h"
#include "meshwright/engine/away.h"

namespace mw::comm {

class Cores;

// Where one thread sleeps until it is woken.
class Sleeper {
 public:
  Sleeper();
  static Sleeper& own();  // of the calling thread

  // The rank of this thread runs on these cores from now on; null: whenever it is awake.
  void use(Cores* cores) { cores_ = cores; }
  Cores* cores() const { return cores_; }
  // The number of the core that the thread has. A thread that sleeps has none: the number is that
  // of its last core.
  int core() const { return core_; }

  // Before others are told that this thread is going to sleep.
  void prepare() {
    processor_ = sched_getcpu();
    state_.store(up, std::memory_order_seq_cst);
  }
  // Until it is woken, which may have happened before; false if the deadline passed.
  bool sleep(Clock::time_point deadline);
  // Called once for each prepare().
  void wake();
  // wake(), as soon as there is a core for it.
  void make_ready();

 private:
  friend class SleeperList;
  friend class Cores;
  enum State : std::uint32_t { up, asleep, woken };

  // wake(), where the kernel starts the thread on one of these processors. The thread may move to
  // any other as soon as it is awake.
  void wake_on(const cpu_set_t& processors);

  std::atomic<std::uint32_t> state_{up};
  Sleeper* next_ = nullptr;  // in the one list in which it is
  Cores* cores_ = nullptr;
  int core_ = -1;       // which core of cores_ the thread has
  int processor_ = -1;  // where the thread was when it went to sleep
  const pid_t thread_;
  const cpu_set_t allowed_;  // the processors on which the thread may run
  bool confined_ = false;    // the thread may run on fewer of them until it is awake
};

// First in, first out. Without allocations.
class SleeperList {
 public:
  bool empty() const { return first_ == nullptr; }
  void push(Sleeper& sleeper);
  Sleeper* pop();  // null: there is none
  bool remove(Sleeper& sleeper);

 private:
  Sleeper *first_ = nullptr, *last_ = nullptr;
};

// Each core stands for an equal part of the processors on which this process may run.
class Cores {
 public:
  explicit Cores(int cores);

  // The calling thread runs on these cores from now on, and until leave().
  void enter();
  void leave();

  // The calling thread takes a core, and waits for one where it must.
  void take();
  // It gives its core to the first in line. It may go on for the few steps to its sleep.
  void give() { give(Sleeper::own().core()); }
  // The same for a thread that another thread may already have woken and given another core. `core`
  // is the number of the core that the calling thread had before it could be woken.
  void give(int core);
  // `sleeper` is woken once there is a core for it, which is its own then.
  void ready(Sleeper& sleeper);
  // Whether somebody waits for a core.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed) > 0; }

  // Called now and then. Where a rank holds its core while it waits for something that this class
  // does not know of, those in line might wait for ever: if no core changes hands and no rank runs,
  // or the process has worked for seconds, one rank more may run from then on.
  void tend();

  std::int64_t changes() const { return changes_.load(std::memory_order_relaxed); }
  // How many ranks may run at a time: one more for each that tend() has let through.
  int at_once() {
    const std::lock_guard guard(lock_);
    return cores_;
  }

 private:
  static constexpr int of_no_processors = -1;  // a core that tend() has added

  void hand(int core, Sleeper& sleeper);
  bool any_runs();

  std::mutex lock_;
  SleeperList line_;
  std::vector<pid_t> threads_;         // that have entered
  std::vector<int> free_;              // cores that nobody has
  std::vector<cpu_set_t> processors_;  // of each core; empty: the kernel chooses
  int cores_;
  std::atomic<int> wanted_{0};
  std::atomic<std::int64_t> changes_{0};  // times that a core was given to somebody
  // What tend() keeps: since when, by changes and the process' clock, all is as it was, and how
  // often no thread ran.
  std::int64_t seen_ = -1;
  double cpu_ = 0;
  int looks_ = 0;
};

}  // namespace mw::comm
