// The held-out loss of a run: every so many steps forward alone, on other data.
#pragma once

#include <cstdint>

#include "meshwright/engine/run.h"

namespace mw {

// After every so many steps, and after the last one, evaluates `batches` batches of the run's
// RunSetup::held_out_data, and puts their mean loss into the step's report.
class HeldOutLoss : public RunObserver {
 public:
  HeldOutLoss(std::int64_t every, std::int64_t batches, std::int64_t steps)
      : every_(every), batches_(batches), steps_(steps) {}
  void step(RankRun& rank, StepEnd& end) override;
  const char* name() const override { return "evaluation"; }

 private:
  const std::int64_t every_, batches_, steps_;
};

}  // namespace mw
