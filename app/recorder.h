// Records a run beside its steps: what rank 0 hands over is written by a thread of its own, so that
// rank 0 is no slower than the ranks that wait for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "common/core_meter.h"
#include "meshwright/engine/run.h"

namespace mw {

class RunRecorder : public RunObserver {
 public:
  // At a step's end, rank 0's thread calls `look` with the report. The recorder's thread then calls
  // `take` with the report, the result of `look`, and the evaluation after the step, if any.
  using Take =
      std::function<void(const StepReport&, const CoreUse&, const std::optional<HeldOut>&)>;
  using Look = std::function<CoreUse(const StepReport&)>;
  // The recorder's thread calls `idle` about once a second while nothing is handed over. After
  // drain() or settle() it does so only once something is handed over again.
  explicit RunRecorder(Take take, Look look = {}, std::function<void()> idle = {});
  ~RunRecorder() override;  // does all work that is left
  RunRecorder(const RunRecorder&) = delete;
  RunRecorder& operator=(const RunRecorder&) = delete;

  // On rank 0, hands the step's report over to the recorder's thread.
  void step(RankRun& rank, StepEnd& end) override;
  std::string name() const override { return "log"; }
  // Does `work` in the recorder's thread, after all that was handed over before. Waits where much
  // is undone. Throws what earlier work has thrown.
  void hand_over(std::function<void()> work);
  // Waits until all work is done, and throws what it threw.
  void drain();
  // Waits until all work is done. Throws nothing.
  void settle();
  // Waits for at most `patience`. Returns false if work is left, which the thread may still be
  // doing.
  [[nodiscard]] bool settle(std::chrono::milliseconds patience);

 private:
  void run();
  void rethrow();  // with the mutex held
  bool rests() const { return (undone_.empty() || failed_) && !idles_; }

  const Take take_;
  const Look look_;
  const std::function<void()> idle_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // work that was handed over; the first one is being done
  std::deque<std::function<void()>> undone_;
  std::exception_ptr failed_;  // what work has thrown; nothing is done after it
  bool ends_ = false, idles_ = false, drained_ = true;
  std::jthread thread_;
};

}  // namespace mw
