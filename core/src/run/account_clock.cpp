// Times a step's communication, copies and watcher, and compares the wall clock with the core time
// of the rank's thread.
#include "run/account_clock.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/step_clock.h"
#include "meshwright/engine/footprint.h"

namespace mw {
namespace {

// The shortest stretches, in seconds, for which the thread's core time is asked for: the system
// takes a microsecond to answer.
constexpr double least_stretch = 1e-4, least_before_wait = 2e-5;

// The phase of the run-time check's own calls, whose time is the watcher's.
const std::string not_counted = "check";

// Whether the instruction's time is that of a transfer which it begins or awaits.
bool communicates(const Instruction& i) {
  return i.code == Code::wait || !sends_nothing(i);
}

// The seconds that it takes to ask the system for this thread's core time.
double seconds_of_question() {
  double least = 1;
  for (int k = 0; k < 10; ++k) {
    const double began = seconds_now();
    core_seconds_of(CLOCK_THREAD_CPUTIME_ID);
    least = std::min(least, seconds_now() - began);
  }
  return least;
}

}  // namespace

AccountClock::~AccountClock() {
  if (copy_seconds == &copied_) copy_seconds = nullptr;
}

void AccountClock::begin(StepOutcome& outcome) {
  outcome_ = &outcome;
  asks_ = device_.is_cpu() && at::get_num_threads() == 1;
  copied_ = watched_ = tracing_ = 0;
  copy_seconds = &copied_;
  if (asks_ && question_ == 0) question_ = seconds_of_question();
  kernels_.begin();
  open();
}

void AccountClock::end() {
  copy_seconds = nullptr;
  kernels_.end();
  end_stretch();
  outcome_->watched = watched_;
  outcome_->tracing = tracing_;
  outcome_ = nullptr;
}

void AccountClock::end_stretch() {
  std::vector<InstructionTime>& instructions = outcome_->instructions;
  if (asks_ && !instructions.empty() && seconds_now() - opened_ > least_before_wait)
    instructions.back().parts.away = turn();
}

void AccountClock::open() {
  if (!asks_) return;
  opened_ = seconds_now();
  opened_cpu_ = core_seconds_of(CLOCK_THREAD_CPUTIME_ID);
  opened_watched_ = watched_;
  tracing_ += question_;
}

// The question's least time is subtracted: a thread that loses its core while it asks had no core.
// A watcher may wait for other ranks: of a stretch in which one was called nobody knows for how
// long the thread had no core.
double AccountClock::turn() {
  const double cpu = core_seconds_of(CLOCK_THREAD_CPUTIME_ID), now = seconds_now();
  const double away = now - opened_ - (cpu - opened_cpu_) - question_;
  opened_ = now;
  opened_cpu_ = cpu;
  tracing_ += question_;
  const bool known = watched_ == opened_watched_;
  opened_watched_ = watched_;
  return known ? std::max(0.0, away) : 0;
}

void AccountClock::before(const Instruction& i) {
  watched_before_ = watched_;
  if (!communicates(i)) return;
  end_stretch();
  sent_before_ = ledger_.communication_seconds(not_counted);
  copied_before_ = copied_;
}

InstructionParts AccountClock::after(const Instruction& i) {
  InstructionParts parts;
  parts.watched = watched_ - watched_before_;
  parts.kernels = kernels_.taken();
  if (communicates(i)) {
    const bool begins = i.begins_transfer();
    parts.sent = device_.is_cpu() ? ledger_.communication_seconds(not_counted) - sent_before_
                 : begins         ? 0
                                  : -1;
    parts.copied = std::clamp(copied_ - copied_before_, 0.0, std::max(parts.sent, 0.0));
    open();
  } else if (asks_ && seconds_now() - opened_ > least_stretch) {
    parts.away = turn();
  }
  return parts;
}

}  // namespace mw
