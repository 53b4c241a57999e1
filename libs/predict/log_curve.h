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
  // Below the first point its value; beyond the last one its value, times `size` over the point's
  // where `grows`. 1 of no points.
  double at(double size, bool grows = false) const;

  Json to_json() const;  // [[size, value], …]
  static LogCurve from_json(const Json& json);
  friend bool operator==(const LogCurve&, const LogCurve&) = default;

 private:
  std::vector<std::pair<double, double>> points_;
};

}  // namespace mw
