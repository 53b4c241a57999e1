// What the zero-bubble schedulers share: an order of F and I, into which W's are put.
#pragma once

#include <vector>

#include "make.h"

namespace pp {

// All F and I of each stage, in order.
using Skeleton = std::vector<std::vector<Action>>;

// When a W may start although F or I of its stage are still to come.
struct GapRule {
  // By which part of its own time a W may outlast the gap that it fills.
  double overrun = 0;
  // Each W stands right behind its I.
  bool at_once = false;
};

struct Placed {
  Skeleton order;  // with W's; empty if the limit cannot be kept
  double makespan = 0;
  double idle = 0;  // of all stages, between their first start and last end
};

// Puts W's where a stage waits anyway, where the memory limit (0: none) demands one, and the rest
// at the end.
Placed place_wgrads(const Skeleton& skeleton, const std::vector<int>& stage_of,
                    const ScheduleRequest& request, double limit, const GapRule& rule);

// Tries several rules over skeletons and keeps what is soonest done, then what has the least idle,
// then the first tried.
class ZeroBubbleSearch {
 public:
  // Throws Error (plan) if the limit is below what one microbatch takes.
  ZeroBubbleSearch(const Scheduler& scheduler, const ScheduleRequest& request, double limit);
  void add(const Skeleton& skeleton);
  // Whether nothing could be sooner done or have less idle.
  bool perfect() const;
  double limit() const { return limit_; }
  // Throws Error (plan) if nothing kept to the limit.
  Schedule best() const;

 private:
  const ScheduleRequest& request_;
  Schedule schedule_;
  double limit_ = 0, bound_ = 0;  // bound: nothing is sooner done
  Placed best_;
};

// A skeleton for any times and any limit that takes one microbatch. In order of time each stage
// does what is ready and furthest along, as long as each later chunk could still take a microbatch.
// With `shares` a chunk holds no more than its part of the limit, by how long its microbatches
// live: from their F to the loss and back.
Skeleton greedy_skeleton(const std::vector<int>& stage_of, const ScheduleRequest& request,
                         double limit, bool shares);

// What one microbatch takes on a stage, over its chunks; and the largest of the stages.
double bytes_of_one(const std::vector<int>& stage_of, int stage, const ScheduleRequest& request);
double most_bytes_of_one(const std::vector<int>& stage_of, const ScheduleRequest& request);

}  // namespace pp
