// Puts the threads of ranks to sleep and wakes them, and hands cores from one to the next.
#include "comm/cores.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "meshwright/engine/host.h"

namespace mw::comm {
namespace {

// The processors on which this thread may run; empty: not known.
cpu_set_t allowed_processors() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
  return allowed;
}

}  // namespace

Sleeper::Sleeper() : thread_(gettid()), allowed_(allowed_processors()) {}

Sleeper& Sleeper::own() {
  static thread_local Sleeper sleeper;
  return sleeper;
}

bool Sleeper::sleep(Clock::time_point deadline) {
  std::uint32_t expected = up;
  state_.compare_exchange_strong(expected, asleep, std::memory_order_seq_cst);
  while (state_.load(std::memory_order_seq_cst) != woken) {
    if (Clock::now() >= deadline) return false;
    futex_wait(state_, asleep, deadline);
  }
  if (confined_) sched_setaffinity(thread_, sizeof allowed_, &allowed_);
  confined_ = false;
  return true;
}

void Sleeper::wake() {
  if (state_.exchange(woken, std::memory_order_seq_cst) == asleep) futex_wake(state_, 1);
}

// The kernel often queues a woken thread on the processor where it last ran. Another rank may run
// there, while the processor of the rank that gave its core away is idle. A step of 256 ranks on
// two processors would take a fifth longer.
void Sleeper::wake_on(const cpu_set_t& processors) {
  const bool elsewhere = !CPU_ISSET(static_cast<std::size_t>(processor_), &processors);
  if (elsewhere && state_.load(std::memory_order_seq_cst) == asleep && CPU_COUNT(&allowed_) > 0)
    confined_ = sched_setaffinity(thread_, sizeof processors, &processors) == 0;
  wake();
}

void Sleeper::make_ready() {
  if (cores_ == nullptr) {
    wake();
  } else {
    cores_->ready(*this);
  }
}

void SleeperList::push(Sleeper& sleeper) {
  sleeper.next_ = nullptr;
  (first_ == nullptr ? first_ : last_->next_) = &sleeper;
  last_ = &sleeper;
}

Sleeper* SleeperList::pop() {
  Sleeper* const first = first_;
  if (first != nullptr) first_ = first->next_;
  return first;
}

bool SleeperList::remove(Sleeper& sleeper) {
  Sleeper* before = nullptr;
  for (Sleeper* at = first_; at != nullptr; before = at, at = at->next_) {
    if (at != &sleeper) continue;
    (before == nullptr ? first_ : before->next_) = at->next_;
    if (last_ == at) last_ = before;
    return true;
  }
  return false;
}

Cores::Cores(int cores) : cores_(cores) {
  for (int core = cores; core-- > 0;) free_.push_back(core);
  const cpu_set_t allowed = allowed_processors();
  const int count = CPU_COUNT(&allowed);
  if (cores < 2 || count < cores) return;
  processors_.resize(static_cast<std::size_t>(cores));
  for (cpu_set_t& processors : processors_) CPU_ZERO(&processors);
  int seen = 0;
  for (int processor = 0; processor < CPU_SETSIZE && seen < count; ++processor) {
    if (!CPU_ISSET(processor, &allowed)) continue;
    CPU_SET(processor, &processors_[static_cast<std::size_t>(seen * cores / count)]);
    ++seen;
  }
}

void Cores::enter() {
  {
    const std::lock_guard guard(lock_);
    threads_.push_back(gettid());
  }
  Sleeper::own().use(this);
  take();
}

void Cores::leave() {
  give();
  Sleeper::own().use(nullptr);
  const std::lock_guard guard(lock_);
  std::erase(threads_, gettid());
}

void Cores::take() {
  Sleeper& own = Sleeper::own();
  own.prepare();
  ready(own);
  own.sleep(Clock::time_point::max());
}

void Cores::give(int core) {
  Sleeper* next = nullptr;
  {
    const std::lock_guard guard(lock_);
    next = line_.pop();
    if (next == nullptr) {
      free_.push_back(core);
    } else {
      wanted_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  if (next != nullptr) hand(core, *next);
}

void Cores::ready(Sleeper& sleeper) {
  int core = of_no_processors;
  {
    const std::lock_guard guard(lock_);
    if (free_.empty()) {
      line_.push(sleeper);
      wanted_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    core = free_.back();
    free_.pop_back();
  }
  hand(core, sleeper);
}

void Cores::hand(int core, Sleeper& sleeper) {
  changes_.fetch_add(1, std::memory_order_relaxed);
  sleeper.core_ = core;
  if (core == of_no_processors || processors_.empty()) {
    sleeper.wake();
  } else {
    sleeper.wake_on(processors_[static_cast<std::size_t>(core)]);
  }
}

// Whether any thread that has entered runs, could run, or waits for a disk.
bool Cores::any_runs() {
  std::vector<pid_t> threads;
  {
    const std::lock_guard guard(lock_);
    threads = threads_;
  }
  return std::any_of(threads.begin(), threads.end(), [](pid_t thread) {
    std::ifstream file(fmt::format("/proc/self/task/{}/stat", thread));
    std::string line;
    std::getline(file, line);
    const std::size_t name_ends = line.rfind(") ");
    if (name_ends == std::string::npos) return false;
    const char state = line[name_ends + 2];
    return state == 'R' || state == 'D';
  });
}

void Cores::tend() {
  // Looks in a row that must find no running thread; at one look, a thread may just wait for a
  // lock.
  constexpr int most_looks = 2;
  constexpr double longest_work = 2;  // seconds of CPU time, more than an instruction should take
  const double cpu = cpu_seconds_now();
  if (changes() != seen_ || !wanted()) {
    seen_ = changes();
    cpu_ = cpu;
    looks_ = 0;
    return;
  }
  looks_ = any_runs() ? 0 : looks_ + 1;
  if (looks_ < most_looks && cpu - cpu_ < longest_work * cores_) return;
  {
    const std::lock_guard guard(lock_);
    ++cores_;
  }
  give(of_no_processors);
}

}  // namespace mw::comm

namespace mw {

// While a thread is away its Sleeper has no Cores, so that it can be woken without a core.
CoreRelease::CoreRelease() : cores_(comm::Sleeper::own().cores()) {
  if (cores_ == nullptr) return;
  comm::Sleeper::own().use(nullptr);
  cores_->give();
}

CoreRelease::~CoreRelease() {
  if (cores_ == nullptr) return;
  comm::Sleeper::own().use(cores_);
  cores_->take();
}

}  // namespace mw
