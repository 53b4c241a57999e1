// Puts the threads of ranks to sleep and wakes them, and hands cores from one to the next.
#include "comm/cores.h"

#include "meshwright/engine/host.h"

namespace mw::comm {

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
  return true;
}

void Sleeper::wake() {
  if (state_.exchange(woken, std::memory_order_seq_cst) == asleep) futex_wake(state_, 1);
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

void Cores::take() {
  Sleeper& own = Sleeper::own();
  own.prepare();
  ready(own);
  own.sleep(Clock::time_point::max());
}

void Cores::give() {
  Sleeper* next = nullptr;
  {
    const std::lock_guard guard(lock_);
    next = line_.pop();
    if (next == nullptr) {
      ++free_;
    } else {
      wanted_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  if (next == nullptr) return;
  changes_.fetch_add(1, std::memory_order_relaxed);
  next->wake();
}

void Cores::ready(Sleeper& sleeper) {
  {
    const std::lock_guard guard(lock_);
    if (free_ == 0) {
      line_.push(sleeper);
      wanted_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    --free_;
  }
  changes_.fetch_add(1, std::memory_order_relaxed);
  sleeper.wake();
}

void Cores::tend() {
  constexpr double longest_work = 2;  // seconds that hardly an instruction takes
  const double wall = seconds_now(), cpu = cpu_seconds_now();
  const bool works = cpu - cpu_ > (cores_ - 0.5) * (wall - wall_);
  const bool still = changes() == seen_ && wanted();
  if (!still) since_ = wall;
  seen_ = changes();
  wall_ = wall;
  cpu_ = cpu;
  if (!still || (works && wall - since_ < longest_work)) return;
  ++cores_;
  since_ = wall;
  give();
}

}  // namespace mw::comm
