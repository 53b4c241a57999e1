// A queue of what is to be written of a run, and the thread that writes it.
#include "app/recorder.h"

#include <memory>

#include "meshwright/engine/away.h"
#include "meshwright/threads.h"

namespace mw {
namespace {
constexpr std::size_t most_undone = 256;
constexpr std::chrono::seconds idle_interval{1};
}  // namespace

RunRecorder::RunRecorder(Take take, Look look, std::function<void()> idle)
    : take_(std::move(take)),
      look_(std::move(look)),
      idle_(std::move(idle)),
      thread_(start_thread([this] { run(); })) {}

RunRecorder::~RunRecorder() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RunRecorder::step(RankRun& /*rank*/, StepEnd& end) {
  if (end.report == nullptr) return;
  const CoreUse use = look_ ? look_(*end.report) : CoreUse();
  hand_over(
      [this, report = end.report, held_out = end.held_out, use] { take_(*report, use, held_out); });
}

void RunRecorder::hand_over(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  wait_away(changed_, lock, [&] { return undone_.size() < most_undone || failed_; });
  rethrow();
  undone_.push_back(std::move(work));
  drained_ = false;
  changed_.notify_all();
}

void RunRecorder::drain() {
  std::unique_lock lock(mutex_);
  drained_ = true;
  wait_away(changed_, lock, [&] { return rests(); });
  rethrow();
}

void RunRecorder::settle() {
  std::unique_lock lock(mutex_);
  drained_ = true;
  changed_.wait(lock, [&] { return rests(); });
}

bool RunRecorder::settle(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  drained_ = true;
  return changed_.wait_for(lock, patience, [&] { return rests(); });
}

void RunRecorder::rethrow() {
  if (failed_) std::rethrow_exception(failed_);
}

void RunRecorder::run() {
  std::unique_lock lock(mutex_);
  // Calls `work` with the mutex unlocked. After one has failed, no other is called.
  const auto carry_out = [&](const std::function<void()>& work) {
    if (failed_) return;
    lock.unlock();
    std::exception_ptr failed;
    try {
      work();
    } catch (...) {
      failed = std::current_exception();
    }
    lock.lock();
    failed_ = failed;
  };
  while (true) {
    const auto has_to_do = [&] { return !undone_.empty() || ends_; };
    if (!changed_.wait_for(lock, idle_interval, has_to_do)) {
      if (!idle_ || drained_) continue;
      idles_ = true;
      carry_out(idle_);
      idles_ = false;
      changed_.notify_all();
      continue;
    }
    if (undone_.empty()) return;
    const std::function<void()> work = undone_.front();
    carry_out(work);
    undone_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace mw
