// The held-out loss of a run: every so many steps forward alone, on other data.
#pragma once

#include <cstdint>

#include "meshwright/engine/run.h"

namespace mw {

// After every so many steps, and after the last one, evaluates `batches` batches of the run's
// RunSetup::held_out_data, and puts their mean loss into the step's report. A source without an end
// makes held-out samples too: its batches begin beyond all that a training has.
class HeldOutLoss : public RunObserver {
 public:
  HeldOutLoss(std::int64_t every, std::int64_t batches, std::int64_t steps, bool endless = false)
      : every_(every), batches_(batches), steps_(steps), first_(endless ? beyond : 0) {}
  void step(RankRun& rank, StepEnd& end) override;
  std::string name() const override { return "evaluation"; }

 private:
  static constexpr std::int64_t beyond = std::int64_t{1} << 31;  // the number of a batch
  const std::int64_t every_, batches_, steps_, first_;
};

}  // namespace mw
