// What a script has to say of each step: its function `observe`, and those of `observers`.
#pragma once

#include <atomic>
#include <string>

#include "meshwright/engine/run.h"
#include "script/experiment.h"

namespace mw {

// Calls the experiment's functions on rank 0 after each step, and adds the numbers that they
// return, and those that the run records itself, to the step's. { stop = true } ends the run.
class Observe : public RunObserver {
 public:
  explicit Observe(const Experiment& experiment) : experiment_(experiment) {}
  void step(RankRun& rank, StepEnd& end) override;
  bool decides() const override { return !experiment_.observe.empty(); }
  std::string name() const override { return "observe"; }
  bool ended() const { return ended_; }  // the run, by a function's word

 private:
  Json facts_of(const StepReport& report) const;
  void take(const Experiment::Observing& from, const Json& given, StepEnd& end);

  const Experiment& experiment_;
  std::atomic<bool> ended_ = false;
};

}  // namespace mw
