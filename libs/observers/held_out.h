// The held-out loss of a run: evaluates the model on other data, every few steps, by forward alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/engine/run.h"

namespace mw {

// After every `every` steps, and after the last one, evaluates `batches` batches of the run's
// RunSetup::held_out_data, and puts their mean loss into the step's report. Of data with `sets`
// (TokenSource::sets), whose batches take turns, the mean loss of each set is a metric. `endless`:
// the data has no end, and the held-out batches are numbered beyond all batches of a training.
class HeldOutLoss : public RunObserver {
 public:
  HeldOutLoss(std::int64_t every, std::int64_t batches, std::int64_t steps, bool endless = false,
              std::vector<std::string> sets = {})
      : every_(every),
        batches_(batches),
        steps_(steps),
        first_(endless ? beyond : 0),
        sets_(std::move(sets)) {}
  void step(RankRun& rank, StepEnd& end) override;
  std::string name() const override { return "evaluation"; }

 private:
  static constexpr std::int64_t beyond = std::int64_t{1} << 31;  // first batch of `endless` data
  const std::int64_t every_, batches_, steps_, first_;
  const std::vector<std::string> sets_;
};

}  // namespace mw
