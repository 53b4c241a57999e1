// Says by how much a measured step parts from the predicted one, and what may explain that.
#pragma once

#include <string>
#include <vector>

#include "common/run_timing.h"

namespace mw {

struct PredictedStep {
  double seconds = CoreUse::unknown;  // not known: nothing was predicted
  // By how much the calibration mispredicts its own mixes on average, as a share; 0: there is none.
  double error = 0;
  int ranks = 1;
};

struct Parting {
  double share = CoreUse::unknown;  // measured over predicted, less 1
  bool explained = true;            // the two are as near as predictions of this machine are
  // Known reasons, where they are not: "busy", "others_unknown",
  // "fewer_cores", "not_calibrated".
  std::vector<std::string> why;
  std::string text;  // the same for people; empty: no step was measured or predicted

  Json to_json() const;
};

Parting parting_of(const RunTiming& measured, const PredictedStep& predicted);
// Takes both from a result of `train`, or from a run file that has /result and /predicted.
Parting parting_of(const Json& result, const Json& predicted);

}  // namespace mw
