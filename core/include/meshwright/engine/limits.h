// What a plan can hold. What is beyond it is refused before anything of its size is made: tensors
// whose bytes 64 bits do not count, and plans that would take more than seconds to make.
#pragma once

#include <cstdint>

#include "meshwright/error.h"
#include "meshwright/graph.h"

namespace mw {

// Threads that one process can run sensibly: beyond it a plan can be predicted, not executed.
constexpr int most_thread_ranks = 512;

// Of the elements of a step's tensors, and of parameters times microbatches, for what is done to
// them in each. Sums of their bytes, some of them several times, then fit 64 bits.
constexpr double most_elements = 0x1p56;

// Adds a problem for what of the graph, of all sequences of a step, is too large.
void check_sizes(const Graph& step, Problems& problems);

// What the making of a plan grows with.
struct PlanSize {
  std::int64_t ops = 0;  // of the graph
  std::int64_t stages = 1, vstages = 1, microbatches = 1;

  // Works of all stages: F, and B or I and W, of each virtual stage and microbatch.
  double works() const;
  // About the microseconds that it takes.
  double work() const;
};
constexpr double most_work = 6e6;

// Of one plan after the other, all together: in a search that may find none, to make one better
// that will do, and of steps that differ.
constexpr double most_search = most_work, most_improvement = 4 * most_work,
                 most_steps_work = 10 * most_work;

// Adds a problem for a plan that would take too much work, with the number to change.
void check_work(const PlanSize& size, const Graph& graph, Problems& problems);

}  // namespace mw
