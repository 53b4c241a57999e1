// Looks up a measured curve between its points.
#include "predict/log_curve.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace mw {

LogCurve::LogCurve(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {
  for (const auto& [size, value] : points_) {
    if (!(size > 0) || !(value > 0) || !std::isfinite(size) || !std::isfinite(value))
      throw std::invalid_argument("a curve's point is not positive");
  }
  const auto less = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(points_.begin(), points_.end(), less);
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  points_.erase(std::unique(points_.begin(), points_.end(), same), points_.end());
}

double LogCurve::at(double size, bool grows) const {
  if (points_.empty()) return 1;
  if (!(size > points_.front().first)) return points_.front().second;
  const auto& last = points_.back();
  if (size >= last.first) return last.second * (grows ? size / last.first : 1);
  const auto above = std::upper_bound(points_.begin(), points_.end(), size,
                                      [](double s, const auto& point) { return s < point.first; });
  const auto below = above - 1;
  const double share = std::log(size / below->first) / std::log(above->first / below->first);
  return below->second * std::pow(above->second / below->second, share);
}

Json LogCurve::to_json() const {
  Json json = Json::array();
  for (const auto& [size, value] : points_) json.push_back({size, value});
  return json;
}

LogCurve LogCurve::from_json(const Json& json) {
  std::vector<std::pair<double, double>> points;
  for (const Json& point : json)
    points.emplace_back(point.at(0).get<double>(), point.at(1).get<double>());
  return LogCurve(std::move(points));
}

}  // namespace mw
