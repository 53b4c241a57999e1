// The numbers of a step, from the observers to the recorder.
#pragma once

#include <string>

#include "app/recorder.h"

namespace mw {

class Measurements;

// Adds the numbers that a run records itself: of its loss scale and of evaluations.
class OwnMetrics : public RunObserver {
 public:
  // `scales`: the run has a loss scale.
  explicit OwnMetrics(bool scales) : scales_(scales) {}
  void step(RankRun& rank, StepEnd& end) override;
  std::string name() const override { return "log"; }

 private:
  const bool scales_;
};

// Hands the numbers of all observers before it to the recorder, after the step itself.
class RecordMetrics : public RunObserver {
 public:
  RecordMetrics(RunRecorder& recorder, Measurements& measured)
      : recorder_(recorder), measured_(measured) {}
  void step(RankRun& rank, StepEnd& end) override;
  std::string name() const override { return "log"; }

 private:
  RunRecorder& recorder_;
  Measurements& measured_;
};

}  // namespace mw
