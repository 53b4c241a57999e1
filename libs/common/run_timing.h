// What the steps of a run took, with what else used the cores meanwhile, and whether its wall
// seconds can be relied on.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/core_meter.h"
#include "meshwright/json.h"

namespace mw {

struct TimedStep {
  double seconds = 0, cpu = 0;  // cpu: seconds of cores, of all ranks
  CoreUse use;
};

struct RunTiming {
  int cores = 1;                               // that the machine has
  int wanted = 1;                              // cores that the ranks keep busy
  CoreUse use;                                 // means over the steps after the warm-up
  std::size_t steps = 0, disturbed_steps = 0;  // after the warm-up
  // Wall seconds cannot be relied on: too few steps had the cores that the ranks want. Where there
  // are enough of them, `seconds` is their median, and the others do not count.
  bool disturbed = false;
  double seconds = CoreUse::unknown, cpu = CoreUse::unknown;  // medians of a step
  // Standard errors of these two as shares of them, by medians of five stretches of the run.
  double error = CoreUse::unknown, cpu_error = CoreUse::unknown;

  Json to_json() const;
};

// The number under a key. NaN: there is none, or `json` has no keys.
double number_under(const Json& json, const char* key);
// The same as a count of up to 10^9; 0 for any other number, and where there is none.
int count_under(const Json& json, const char* key);
// Null where the number is not finite: JSON has no word for that.
Json number_or_null(double number);

// The cores that ranks lacked which keep `wanted` of `cores` busy. 0 where the system does not say.
double missing_cores(const CoreUse& use, int wanted, int cores);

// `steps`: all steps of a run, those of the warm-up too.
RunTiming timing_of(const std::vector<TimedStep>& steps, int wanted, int cores);

// Reads the timing of a result of `train` (lua/meshwright/results.json). A result of an earlier
// version has medians alone.
RunTiming read_timing(const Json& result);

// "other programs had 0.6 of 2 cores (12 of 20 steps were disturbed)". Empty: no step was
// disturbed, or the system does not say.
std::string disturbance_text(const RunTiming& timing);

}  // namespace mw
