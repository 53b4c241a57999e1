// A queue of what is to be written of a run, and the thread that writes it.
#include "app/recorder.h"

#include <memory>

#include "meshwright/engine/away.h"
#include "meshwright/threads.h"

namespace mw {
namespace {
constexpr std::size_t most_undone = 256;
}

RunRecorder::RunRecorder(Take take, Look look)
    : take_(std::move(take)), look_(std::move(look)), thread_(start_thread([this] { run(); })) {}

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
  std::vector<RankReport> ranks = std::move(end.report->ranks);
  end.report->ranks.clear();
  auto report = std::make_shared<StepReport>(*end.report);
  report->ranks = std::move(ranks);
  hand_over([this, report, use, metrics = end.metrics] { take_(*report, use, metrics); });
}

void RunRecorder::hand_over(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  wait_away(changed_, lock, [&] { return undone_.size() < most_undone || failed_; });
  rethrow();
  undone_.push_back(std::move(work));
  changed_.notify_all();
}

void RunRecorder::drain() {
  std::unique_lock lock(mutex_);
  wait_away(changed_, lock, [&] { return undone_.empty() || failed_; });
  rethrow();
}

void RunRecorder::settle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return undone_.empty() || failed_; });
}

bool RunRecorder::settle(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return undone_.empty() || failed_; });
}

void RunRecorder::rethrow() {
  if (failed_) std::rethrow_exception(failed_);
}

void RunRecorder::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !undone_.empty() || ends_; });
    if (undone_.empty()) return;
    const std::function<void()> work = undone_.front();
    if (!failed_) {
      lock.unlock();
      std::exception_ptr failed;
      try {
        work();
      } catch (...) {
        failed = std::current_exception();
      }
      lock.lock();
      failed_ = failed;
    }
    undone_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace mw
