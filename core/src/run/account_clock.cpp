// Times a step's communication, copies and watcher, and compares the clock with what the rank's
// thread had of a core.
#include "run/account_clock.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <string>

#include "comm/step_clock.h"
#include "meshwright/engine/host.h"

namespace mw {
namespace {

// The system takes a microsecond to say what a thread had of a core. It is asked for stretches of
// at least so many seconds.
constexpr double least_stretch = 1e-4, least_before_wait = 2e-5;

// The run-time check's own calls are the watcher's.
const std::string not_counted = "check";

bool communicates(const Instruction& i) {
  switch (i.code) {
    case Code::start:
    case Code::wait:
    case Code::hook_start:
    case Code::hook_finish:
    case Code::totals:
      return true;
    default:
      return false;
  }
}

// What it takes to ask the system what this thread had of a core.
double seconds_of_question() {
  double least = 1;
  for (int k = 0; k < 10; ++k) {
    const double began = seconds_now();
    core_seconds_of(CLOCK_THREAD_CPUTIME_ID);
    least = std::min(least, seconds_now() - began);
  }
  return least;
}

bool begins(const Instruction& i) {
  return i.code == Code::start || i.code == Code::hook_start;
}

}  // namespace

AccountClock::~AccountClock() {
  if (copy_seconds == &copied_) copy_seconds = nullptr;
}

Watcher* AccountClock::begin(Watcher* watcher) {
  watcher_ = watcher;
  runs_ = true;
  asks_ = device_.is_cpu() && at::get_num_threads() == 1;
  parts_.clear();
  copied_ = watched_ = tracing_ = 0;
  copy_seconds = &copied_;
  if (asks_ && question_ == 0) question_ = seconds_of_question();
  open();
  return watcher == nullptr ? nullptr : this;
}

Watcher* AccountClock::end(StepOutcome& outcome) {
  runs_ = false;
  copy_seconds = nullptr;
  if (asks_ && !parts_.empty() && seconds_now() - opened_ > least_before_wait)
    parts_.back().away = turn();
  outcome.watched = watched_;
  outcome.tracing = tracing_;
  return watcher_;
}

void AccountClock::open() {
  if (!asks_) return;
  opened_ = seconds_now();
  opened_cpu_ = core_seconds_of(CLOCK_THREAD_CPUTIME_ID);
  tracing_ += question_;
}

// A thread that asks the system may lose its core to another one: that is no cost of the question.
double AccountClock::turn() {
  const double cpu = core_seconds_of(CLOCK_THREAD_CPUTIME_ID), now = seconds_now();
  const double away = now - opened_ - (cpu - opened_cpu_) - question_;
  opened_ = now;
  opened_cpu_ = cpu;
  tracing_ += question_;
  return std::max(0.0, away);
}

void AccountClock::before(const Instruction& i) {
  watched_before_ = watched_;
  if (!communicates(i)) return;
  if (asks_ && !parts_.empty() && seconds_now() - opened_ > least_before_wait)
    parts_.back().away = turn();
  sent_before_ = ledger_.communication_seconds(not_counted);
  copied_before_ = copied_;
}

void AccountClock::after(const Instruction& i) {
  InstructionParts parts;
  parts.watched = watched_ - watched_before_;
  if (communicates(i)) {
    parts.sent = device_.is_cpu() ? ledger_.communication_seconds(not_counted) - sent_before_
                 : begins(i)      ? 0
                                  : -1;
    parts.copied = std::clamp(copied_ - copied_before_, 0.0, std::max(parts.sent, 0.0));
    parts_.push_back(parts);
    open();
    return;
  }
  if (asks_ && seconds_now() - opened_ > least_stretch) parts.away = turn();
  parts_.push_back(parts);
}

template <class Call>
void AccountClock::timed(const Call& call) {
  const double began = seconds_now();
  call();
  watched_ += seconds_now() - began;
}

void AccountClock::computed(const Instruction& i, int slot, int microbatch,
                            const at::Tensor& tensor) {
  timed([&] { watcher_->computed(i, slot, microbatch, tensor); });
}

void AccountClock::reads(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) {
  timed([&] { watcher_->reads(i, slot, microbatch, tensor); });
}

void AccountClock::moved(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) {
  timed([&] { watcher_->moved(i, slot, microbatch, tensor); });
}

void AccountClock::gradients(RankRun& rank) {
  timed([&] { watcher_->gradients(rank); });
}

void AccountClock::begin(RankRun& rank, std::int64_t step) {
  timed([&] { watcher_->begin(rank, step); });
}

void AccountClock::ran(int microbatch) {
  timed([&] { watcher_->ran(microbatch); });
}

void AccountClock::ended() {
  timed([&] { watcher_->ended(); });
}

}  // namespace mw
