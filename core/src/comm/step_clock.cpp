// Takes times of a step by the host's clock or by a device's events, and reads them.
#include "comm/step_clock.h"

#include "comm/streams.h"
#include "meshwright/engine/host.h"

namespace mw {

thread_local double* copy_seconds = nullptr;

namespace {
thread_local StepClock* clock_of_thread = nullptr;
}

StepClock* StepClock::on_device() {
  return clock_of_thread;
}

StepClock::~StepClock() {
  if (clock_of_thread == this) clock_of_thread = nullptr;
}

void StepClock::begin() {
  began_ = seconds_now();
  times_.clear();
  waits_.clear();
  marks_ = 0;
  if (device_.is_cpu()) return;
  clock_of_thread = this;
  mark();
}

int StepClock::mark() {
  if (device_.is_cpu()) {
    times_.push_back(seconds_now() - began_);
    return static_cast<int>(times_.size()) - 1;
  }
  if (marks_ == events_.size())
    events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  events_[marks_].record(current_stream(device_));
  return static_cast<int>(marks_++);
}

double StepClock::seconds(int mark) const {
  const auto at = static_cast<std::size_t>(mark);
  return device_.is_cpu() ? times_[at] : 1e-3 * events_[0].elapsedTime(events_[at]);
}

void StepClock::end() {
  if (device_.is_cpu()) return;
  clock_of_thread = nullptr;
  const HostWait wait("the end of a step");
  const int last = mark();
  events_[static_cast<std::size_t>(last)].synchronize();
  for (const Wait& w : waits_) w.ledger->waited(w.entry, seconds(w.to) - seconds(w.from));
}

void StepClock::waited(Ledger& ledger, Ledger::Entry entry, int from, int to) {
  waits_.push_back({&ledger, entry, from, to});
}

}  // namespace mw
