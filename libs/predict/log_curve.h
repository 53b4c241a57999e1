// A positive quantity as a function of a size: straight lines between measured points, in
// logarithms of both.
#pragma once

#include <utility>
#include <vector>

#include "meshwright/json.h"

namespace mw {

class LogCurve {
 public:
  LogCurve() = default;
  // (size, value), both positive; in any order, of equal sizes the first counts. Throws
  // std::invalid_argument for a number that is not positive.
  explicit LogCurve(std::vector<std::pair<double, double>> points);

  bool empty() const { return points_.empty(); }
  const std::vector<std::pair<double, double>>& points() const { return points_; }
  // The value at `size`. Below the first point it is that point's value. Beyond the last point it
  // is the last value, times `size` over the last point's size where `grows`. 1 where the curve has
  // no points.
  double at(double size, bool grows = false) const;

  Json to_json() const;  // [[size, value], …]
  static LogCurve from_json(const Json& json);
  friend bool operator==(const LogCurve&, const LogCurve&) = default;

 private:
  std::vector<std::pair<double, double>> points_;
};

}  // namespace mw
