// Shares layers out over stages that are not equally fast.
#include "search/uneven.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

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

namespace {

constexpr double rounding = 1 + 1e-9;

// How many layers of `layer` seconds a stage does in a step of `step` seconds.
double layers_in(double step, double layer) {
  return std::floor(step * rounding / layer);
}

// The shortest step in which the stages do `layers` layers together; `layer`: each stage's seconds
// of a layer. It is a whole number of layers on one of the stages.
double shortest_step(const std::vector<double>& layer, int chunks, int layers) {
  const auto holds = [&](double step) {
    double all = 0;
    for (const double one : layer) {
      const double own = layers_in(step, one);
      if (own < chunks) return false;
      all += own;
    }
    return all >= layers;
  };
  double shortest = std::numeric_limits<double>::infinity();
  for (const double one : layer) {
    int few = chunks, enough = layers;  // bounds of this stage's layers
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

}  // namespace

double UnevenStages::seconds(int stages, int chunks, const std::vector<Time>& by_part) {
  // For each stage: a layer's share of the step if all stages were as fast as this one. The busiest
  // stage then has `even` layers.
  const double even = std::ceil(static_cast<double>(layers_) / stages);
  std::vector<double> layer, bubble;
  for (const std::vector<std::size_t>& places : lies(stages)) {
    Time most;
    for (const std::size_t place : places) {
      const Time& own = by_part[place];
      if (own.busiest + own.bubble > most.busiest + most.bubble) most = own;
    }
    layer.push_back(most.busiest / even);
    bubble.push_back(most.bubble / layers_);
  }
  const double step = shortest_step(layer, chunks, layers_);
  std::vector<double> own;
  for (const double one : layer) own.push_back(layers_in(step, one));
  // Where stages could do more layers than there are, those with most layers get fewer.
  for (double all = std::accumulate(own.begin(), own.end(), 0.0); all > layers_; --all)
    --*std::ranges::max_element(own);
  return step + std::inner_product(own.begin(), own.end(), bubble.begin(), 0.0);
}

}  // namespace mw
