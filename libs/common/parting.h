// Compares a measured step with the predicted one: by how much they differ, and what may explain
// it.
#pragma once

#include <string>
#include <vector>

#include "common/run_timing.h"

namespace mw {

struct PredictedStep {
  double seconds = CoreUse::unknown;  // NaN: nothing was predicted
  // The mean relative error of the calibration on its own mixes; 0: this machine is not calibrated.
  double error = 0;
  int ranks = 1;
};

struct Parting {
  double share = CoreUse::unknown;  // measured over predicted, less 1
  bool explained = true;  // the difference is no larger than usual for predictions of this machine
  // Known reasons for a larger difference: "busy", "others_unknown", "fewer_cores",
  // "not_calibrated".
  std::vector<std::string> why;
  std::string text;  // the comparison in words; empty: no step was measured or predicted

  Json to_json() const;
};

Parting parting_of(const RunTiming& measured, const PredictedStep& predicted);
// `result` has the measured step, `predicted` the predicted one, in a result of `train` or a run
// file.
Parting parting_of(const Json& result, const Json& predicted);

}  // namespace mw
