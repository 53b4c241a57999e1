// What the zero-bubble schedulers share: an order of F and I (input gradients), the skeleton, into
// which W (weight gradients) are put.
#pragma once

#include <vector>

#include "make.h"

namespace pp {

// All F and I of each stage, in order.
using Skeleton = std::vector<std::vector<Action>>;

// When a W may start although F or I of its stage are still to come.
struct GapRule {
  // The part of its own time by which a W may outlast the gap that it fills.
  double overrun = 0;
  // Each W stands right behind its I.
  bool at_once = false;
};

struct Placed {
  Skeleton order;  // orders with W's; empty if the limit cannot be kept
  double makespan = 0;
  double idle = 0;  // idle time of all stages between their first start and last end
};

// Puts W's where a stage waits anyway, where the memory limit (0: none) demands one, and the rest
// at the end.
Placed place_wgrads(const Skeleton& skeleton, const std::vector<int>& stage_of,
                    const ScheduleRequest& request, double limit, const GapRule& rule);

// Tries several rules on skeletons and keeps the order that is over first, of equal ones that with
// the least idle time, then the first.
class ZeroBubbleSearch {
 public:
  // Throws Error (plan) if one microbatch's activations exceed the limit.
  ZeroBubbleSearch(const Scheduler& scheduler, const ScheduleRequest& request, double limit);
  void add(const Skeleton& skeleton);
  // Whether no order could be over sooner or have less idle time.
  bool perfect() const;
  double limit() const { return limit_; }
  // Throws Error (plan) if no order kept to the limit.
  Schedule best() const;

 private:
  const ScheduleRequest& request_;
  Schedule schedule_;
  double limit_ = 0, bound_ = 0;  // bound_: no order is over sooner
  Placed best_;
};

// A skeleton for any times, and for any limit that one microbatch fits into. In order of time each
// stage runs the ready action that is furthest along, as long as each later chunk could still take
// a microbatch. With `shares` a chunk holds no more than its share of the limit, by how long its
// microbatches live: from their F to the loss and back.
Skeleton greedy_skeleton(const std::vector<int>& stage_of, const ScheduleRequest& request,
                         double limit, bool shares);

// The activation bytes of one microbatch on a stage, over its chunks; and the largest of the
// stages.
double bytes_of_one(const std::vector<int>& stage_of, int stage, const ScheduleRequest& request);
double most_bytes_of_one(const std::vector<int>& stage_of, const ScheduleRequest& request);

}  // namespace pp
