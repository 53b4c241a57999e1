// What instructions of one kind take on this machine, fitted to measured ones.
#pragma once

#include <vector>

#include "meshwright/json.h"
#include "predict/log_curve.h"

namespace mw {

// What an instruction's seconds follow: a roofline's terms, and the dot products that its flops are
// (flops over the width of what it reads first): each is begun and put away, and of a score of
// attention an exponential is taken, however short it is.
struct WorkSize {
  double flops = 0, bytes = 0, dots = 0;
  double kernels = 1;
};

// One measured instruction.
struct WorkSample {
  WorkSize size;
  double seconds = 0;
};

// kernels * call + flops * flop + bytes * byte + dots * dot, times the ratio of measured seconds to
// that sum at that many seconds: caches, and the shapes that a library likes.
struct WorkFit {
  double call = 0, flop = 0, byte = 0, dot = 0;  // seconds
  LogCurve ratio;                                // measured over that sum, by the sum
  int samples = 0;
  double error = 0;  // mean of |fitted / measured - 1|

  double sum(const WorkSize& size) const;  // without the ratio
  double seconds(const WorkSize& size) const;
  Json to_json() const;
  // Throws if a key is missing or a number negative.
  static WorkFit from_json(const Json& json);
};

// Fits samples whose seconds are positive; none: a fit of no samples, which prices nothing. What
// counts is the relative error, so that a tiny instruction's is as good as a large one's; one that
// is far off all others (a shape that the library has no kernel for) weighs little.
WorkFit fit_work(const std::vector<WorkSample>& samples);

// Factors, none negative, for which the sums of rows times factors come nearest to `wanted`. Rows
// are of one length. What counts are errors as a share of `of`, which is positive; empty: of
// `wanted`, which then is.
std::vector<double> fit_factors(const std::vector<std::vector<double>>& rows,
                                const std::vector<double>& wanted, std::vector<double> of = {});
// The same, where rows that err by more than `usual` weigh the less the more they err (Huber 1964).
std::vector<double> fit_robustly(const std::vector<std::vector<double>>& rows,
                                 const std::vector<double>& wanted, std::vector<double> of = {},
                                 double usual = 0.1);

}  // namespace mw
