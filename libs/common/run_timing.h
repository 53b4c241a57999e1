// How long the steps of a run took, what else used the cores meanwhile, and whether the wall
// seconds can be relied on.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/core_meter.h"
#include "meshwright/json.h"

namespace mw {

struct TimedStep {
  double seconds = 0, cpu = 0;  // cpu: core-seconds of all ranks
  CoreUse use;
};

struct RunTiming {
  int cores = 1;                               // cores of the machine
  int wanted = 1;                              // cores that the ranks keep busy
  CoreUse use;                                 // means over the steps after the warm-up
  std::size_t steps = 0, disturbed_steps = 0;  // after the warm-up
  // Wall seconds cannot be relied on, as too few steps had all cores that the ranks want. Where
  // enough steps had them, `seconds` is the median of these, and the other steps do not count.
  bool disturbed = false;
  double seconds = CoreUse::unknown, cpu = CoreUse::unknown;  // medians of a step
  // Relative standard errors of `seconds` and `cpu`, by the medians of five stretches of the run.
  double error = CoreUse::unknown, cpu_error = CoreUse::unknown;

  Json to_json() const;
};

// The number under a key. NaN if there is none, or if `json` is no object.
double number_under(const Json& json, const char* key);
// The number under a key as a count of up to 10^9; 0 for any other number, and where there is none.
int count_under(const Json& json, const char* key);
// Null where the number is not finite: JSON has no word for that.
Json number_or_null(double number);

// How many cores the ranks lacked, where they keep `wanted` of `cores` busy. 0 where the system
// does not say.
double missing_cores(const CoreUse& use, int wanted, int cores);

// `steps`: all steps of a run, those of the warm-up too.
RunTiming timing_of(const std::vector<TimedStep>& steps, int wanted, int cores);

// Reads the timing of a result of `train` (lua/meshwright/results.json). A result of an earlier
// version has medians alone.
RunTiming read_timing(const Json& result);

// What disturbed a run: "other programs had 0.6 of 2 cores (12 of 20 steps were disturbed)". Empty:
// no step was disturbed, or the system does not say.
std::string disturbance_text(const RunTiming& timing);

}  // namespace mw
