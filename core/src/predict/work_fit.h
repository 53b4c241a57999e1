// What instructions of one kind take on this machine, fitted to measured ones.
#pragma once

#include <vector>

#include "meshwright/json.h"
#include "predict/log_curve.h"

namespace mw {

// One measured instruction: a roofline's terms, and its seconds.
struct WorkSample {
  double flops = 0, bytes = 0, seconds = 0;
};

// call + flops * flop + bytes * byte, times what is left of measured ones at that many seconds:
// caches, and the shapes that a library likes.
struct WorkFit {
  double call = 0, flop = 0, byte = 0;  // seconds
  LogCurve ratio;                       // measured over that sum, by the sum
  int samples = 0;
  double error = 0;  // mean of |fitted / measured - 1|

  double seconds(double flops, double bytes) const;
  Json to_json() const;
  // Throws if a key is missing or a number negative.
  static WorkFit from_json(const Json& json);
};

// Of samples whose seconds are positive; none: a fit of no samples, which prices nothing. What
// counts is the relative error, so that a tiny instruction's is as good as a large one's.
WorkFit fit_work(const std::vector<WorkSample>& samples);

// Factors, none negative, for which the sums of rows times factors come nearest to `wanted`, by
// relative error. Rows are of one length; `wanted` is positive.
std::vector<double> fit_factors(const std::vector<std::vector<double>>& rows,
                                const std::vector<double>& wanted);

}  // namespace mw
