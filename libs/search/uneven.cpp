// Shares layers out over stages that are not equally fast.
#include "search/uneven.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mw {

const UnevenStages::Lies& UnevenStages::lies(int stages) {
  const auto [found, missing] = lies_.try_emplace(stages);
  if (!missing) return found->second;
  const int ranks = ranks_ / stages;
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<std::size_t> places;
    for (const int part : cluster_.among(stage * ranks, (stage + 1) * ranks))
      places.push_back(static_cast<std::size_t>(std::ranges::find(parts_, part) - parts_.begin()));
    found->second.push_back(std::move(places));
  }
  return found->second;
}

double UnevenStages::seconds(int stages, int chunks, const std::vector<double>& by_part) {
  // A layer's share of a step whose stages all are so fast. The busiest stage has `even` layers.
  const double even = std::ceil(static_cast<double>(layers_) / stages);
  std::vector<double> layer;
  for (const std::vector<std::size_t>& places : lies(stages)) {
    double most = 0;
    for (const std::size_t place : places) most = std::max(most, by_part[place]);
    layer.push_back(most / even);
  }
  constexpr double rounding = 1 + 1e-9;
  const auto holds = [&](double step) {
    double all = 0;
    for (const double one : layer) {
      const double own = std::floor(step * rounding / one);
      if (own < chunks) return false;
      all += own;
    }
    return all >= layers_;
  };
  // The shortest step is a whole number of layers on one of the stages.
  double shortest = std::numeric_limits<double>::infinity();
  for (const double one : layer) {
    int few = chunks, enough = layers_;  // of this stage's layers
    while (few < enough) {
      const int middle = (few + enough) / 2;
      if (holds(middle * one)) {
        enough = middle;
      } else {
        few = middle + 1;
      }
    }
    if (holds(enough * one)) shortest = std::min(shortest, enough * one);
  }
  return shortest;
}

}  // namespace mw
