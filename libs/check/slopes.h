// Checks whether backward is the derivative of forward, by differences of the loss. Equality with
// one rank cannot tell, as a derivative that is wrong everywhere in the same way passes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "meshwright/engine/run.h"

namespace mw {

// The derivative of the first step's loss along a random direction that moves only these
// parameters.
struct Slope {
  std::vector<std::string> parameters;
  double backward = 0;     // the derivative by the gradients
  double differences = 0;  // the derivative by central differences of the loss
  double size = 0;         // 2-norm of the gradients, the order of magnitude of both
  bool agrees() const;     // equal, to the accuracy of differences
};

// Values of the graph whose gradients come through an op whose gradient is deliberately not the
// derivative (StraightThrough): its operands, and all values that these are computed from.
std::set<int> before_straight_through(const Graph& graph);

// The slopes of each parameter of the experiment's model, or of groups where there are many, in
// graph order: on one rank, in float64, with the whole batch at once. Leaves out counts that no
// loss moves (Value::counts), and values before a StraightThrough op. A slope that does not agree
// is measured up to two more times, along other directions: one bend of the loss between two points
// is no fault. Throws Stopped if `stop` was set, Error (run) if a rank fails.
std::vector<Slope> slopes(const RunSetup& experiment, const std::atomic<bool>* stop);

// How far the gradients that lossy hooks reduce are from those of one rank, over repetitions of one
// step from the same parameters.
struct LossyGradients {
  double first = 0;  // |g - g1| / |g1| (2-norms), for the gradients g of the first repetition
  double mean = 0;   // |g - g1| / |g1|, for the mean g of the gradients of all repetitions
  int steps = 0;
};
LossyGradients lossy_gradients(const RunSetup& experiment, int steps,
                               const std::atomic<bool>* stop);

}  // namespace mw
