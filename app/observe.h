// What a script has to say of each step: its function `observe`.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "app/recorder.h"
#include "script/experiment.h"

namespace mw {

class Measurements;

// Calls the experiment's `observe`, if it has one, on rank 0 after each step, and hands the numbers
// that it returns, and those that the run records itself, to the recorder. { stop = true } ends the
// run.
class Observe : public RunObserver {
 public:
  Observe(const Experiment& experiment, RunRecorder& recorder, Measurements& measured)
      : experiment_(experiment), recorder_(recorder), measured_(measured) {}
  void step(RankRun& rank, StepEnd& end) override;
  bool decides() const override { return experiment_.observe != nullptr; }
  const char* name() const override { return "observe"; }
  bool ended() const { return ended_; }  // the run, by its word

 private:
  using Metrics = std::vector<std::pair<std::string, double>>;
  Json facts_of(const StepReport& report) const;
  void take(std::int64_t step, const Json& given, Metrics& metrics);

  const Experiment& experiment_;
  RunRecorder& recorder_;
  Measurements& measured_;
  std::atomic<bool> ended_ = false;
};

}  // namespace mw
