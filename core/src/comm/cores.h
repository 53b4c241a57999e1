// Puts the threads of ranks to sleep and wakes them. If a process has more ranks than cores, only
// as many ranks run at a time as there are cores, and the others wait in line for a core. A rank
// runs until it must wait for another rank, so that its data stay in the core's cache, and each
// wait costs one switch of threads.
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

// One thread's means to sleep until another thread wakes it.
class Sleeper {
 public:
  Sleeper();
  static Sleeper& own();  // the Sleeper of the calling thread

  // From now on the thread runs only while it has one of these cores; null: whenever it is awake.
  void use(Cores* cores) { cores_ = cores; }
  Cores* cores() const { return cores_; }
  // The number of the core that the thread has; for a thread that sleeps, the number of its last
  // core.
  int core() const { return core_; }

  // To be called before other threads can learn that this thread is going to sleep.
  void prepare() {
    processor_ = sched_getcpu();
    state_.store(up, std::memory_order_seq_cst);
  }
  // Sleeps until wake(), which may have been called before; returns false if the deadline passed.
  bool sleep(Clock::time_point deadline);
  // Wakes the thread; called once for each prepare().
  void wake();
  // Wakes the thread as soon as there is a core for it.
  void make_ready();

 private:
  friend class SleeperList;
  friend class Cores;
  enum State : std::uint32_t { up, asleep, woken };

  // Wakes the thread on one of these processors. As soon as the thread is awake, it may move to any
  // of its processors.
  void wake_on(const cpu_set_t& processors);

  std::atomic<std::uint32_t> state_{up};
  Sleeper* next_ = nullptr;  // the next one in the list that holds this Sleeper
  Cores* cores_ = nullptr;
  int core_ = -1;       // the core of cores_ that the thread has
  int processor_ = -1;  // the processor on which the thread last ran
  const pid_t thread_;
  const cpu_set_t allowed_;  // the processors on which the thread may run
  bool confined_ = false;    // whether wake_on() has limited these processors, until it is awake
};

// A first-in, first-out list of Sleepers, which allocates nothing.
class SleeperList {
 public:
  bool empty() const { return first_ == nullptr; }
  void push(Sleeper& sleeper);
  Sleeper* pop();  // null: the list is empty
  bool remove(Sleeper& sleeper);

 private:
  Sleeper *first_ = nullptr, *last_ = nullptr;
};

// A number of cores that the ranks of a process share in turns. Each core stands for an equal part
// of the processors on which this process may run.
class Cores {
 public:
  explicit Cores(int cores);

  // The calling thread runs on these cores between enter() and leave().
  void enter();
  void leave();

  // The calling thread takes a core, and waits until one is free.
  void take();
  // The calling thread gives its core to the first thread in line. It may still run until it
  // sleeps.
  void give() { give(Sleeper::own().core()); }
  // As give(), for a thread that another thread may already have woken and given another core.
  // `core`: the core that the calling thread had before it could be woken.
  void give(int core);
  // Wakes `sleeper` as soon as there is a core for it, and gives it this core.
  void ready(Sleeper& sleeper);
  // Whether any thread waits for a core.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed) > 0; }

  // To be called now and then. Resolves deadlocks: a rank may hold its core while it waits for
  // something that this class does not know, and that needs a rank in line. If no core changes
  // hands, and no rank runs or the process has used seconds of CPU time, adds a core.
  void tend();

  std::int64_t changes() const { return changes_.load(std::memory_order_relaxed); }
  // The number of ranks that may run at a time, with the cores that tend() has added.
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
  std::vector<pid_t> threads_;         // threads that have entered
  std::vector<int> free_;              // numbers of cores that no thread has
  std::vector<cpu_set_t> processors_;  // processors of each core; empty: the kernel chooses
  int cores_;
  std::atomic<int> wanted_{0};            // number of threads in line
  std::atomic<std::int64_t> changes_{0};  // how often a core was given to a thread
  // State of tend(): `changes_` and CPU time of the process at the last change, and the number of
  // looks since then that found no running thread.
  std::int64_t seen_ = -1;
  double cpu_ = 0;
  int looks_ = 0;
};

}  // namespace mw::comm
