// Is backward the derivative of forward? Equality with one rank cannot say: a derivative that is
// wrong alike everywhere passes it. So the loss itself is asked, by differences.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "meshwright/engine/run.h"

namespace mw {

// The derivative of the first step's loss along a random direction in which these parameters alone
// are moved.
struct Slope {
  std::vector<std::string> parameters;
  double backward = 0;     // by the gradients
  double differences = 0;  // by central differences of the loss
  double size = 0;         // 2-norm of the gradients: what both are of the order of
  bool agrees() const;     // but for what differences lose
};

// Values of the graph whose gradients come through an op that says that its own is no derivative
// (StraightThrough): all that such an op reads, and all that those are made of.
std::set<int> before_straight_through(const Graph& graph);

// The slopes of each parameter of the experiment's model, or of some together where there are many,
// in graph order: on one rank, in float64, the whole batch at once. Left out are counts that no
// loss moves (Value::counts), and what lies before a StraightThrough op. A slope that does not
// agree was measured twice, in other directions: one bend of the loss that lies between two points
// is no fault. Throws Stopped if `stop` was set, Error (run) if a rank fails.
std::vector<Slope> slopes(const RunSetup& experiment, const std::atomic<bool>* stop);

// The same step again and again from the same parameters: what a hook that loses bits leaves of the
// sum of the gradients, beside one rank's.
struct LossyGradients {
  double first = 0;  // |g - g1| / |g1| (2-norms) of all that such hooks reduce, after one step
  double mean = 0;   // the same of the mean of all steps
  int steps = 0;
};
LossyGradients lossy_gradients(const RunSetup& experiment, int steps,
                               const std::atomic<bool>* stop);

}  // namespace mw
