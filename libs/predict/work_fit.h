// Fits the seconds of one kind of instruction to measured samples.
#pragma once

#include <vector>

#include "meshwright/json.h"
#include "predict/log_curve.h"

namespace mw {

// The sizes from which an instruction's seconds follow: a roofline's terms, and the number of its
// dot products (flops over the width of its first input). Each dot product has costs of its own,
// however short it is: it is begun and stored, and an exponential is taken of a score of attention.
struct WorkSize {
  double flops = 0, bytes = 0, dots = 0;
  double kernels = 1;
};

struct WorkSample {
  WorkSize size;
  double seconds = 0;
};

// Seconds are kernels * call + flops * flop + bytes * byte + dots * dot, times `ratio` at that sum,
// which corrects for caches and for shapes that a library likes.
struct WorkFit {
  // Seconds of each kernel, flop, byte and dot product.
  double call = 0, flop = 0, byte = 0, dot = 0;
  LogCurve ratio;  // measured seconds over the sum, by the sum
  int samples = 0;
  double error = 0;  // mean of |fitted / measured - 1|

  double sum(const WorkSize& size) const;  // the sum without `ratio`
  double seconds(const WorkSize& size) const;
  Json to_json() const;
  // Throws if a key is missing or a number negative.
  static WorkFit from_json(const Json& json);
};

// Fits samples whose seconds are positive. No samples give a fit that prices nothing. Errors are
// relative, so that a tiny instruction fits as well as a large one. A sample that is far off all
// others (a shape that the library has no kernel for) weighs little.
WorkFit fit_work(const std::vector<WorkSample>& samples);

// The factors, none negative, with which the sums of each row times the factors come nearest to
// `wanted`, by least squares. Rows are of one length. Errors count as shares of `of`, which is
// positive; an empty `of` stands for `wanted`, which is then positive.
std::vector<double> fit_factors(const std::vector<std::vector<double>>& rows,
                                const std::vector<double>& wanted, std::vector<double> of = {});
// fit_factors(), where rows that err by more than `usual` weigh the less the more they err (Huber
// 1964).
std::vector<double> fit_robustly(const std::vector<std::vector<double>>& rows,
                                 const std::vector<double>& wanted, std::vector<double> of = {},
                                 double usual = 0.1);

}  // namespace mw
