// Observers that pass the metrics of a step to the recorder.
#pragma once

#include <string>

#include "app/recorder.h"

namespace mw {

class Measurements;

// Adds the metrics that a run records itself: of its loss scale and of evaluations.
class OwnMetrics : public RunObserver {
 public:
  // `scales`: the run has a loss scale. `masks`: the data have labels that count nothing.
  OwnMetrics(bool scales, bool masks) : scales_(scales), masks_(masks) {}
  void step(RankRun& rank, StepEnd& end) override;
  std::string name() const override { return "log"; }

 private:
  const bool scales_, masks_;
};

// Hands the metrics of all observers before it to the recorder, after the step's report.
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
