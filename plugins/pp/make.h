// What the schedulers share: checks of requests, and helpers that put orders together.
#pragma once

#include <string>
#include <vector>

#include "meshwright/options.h"
#include "meshwright/schedule.h"

namespace pp {

using namespace mw;

// Throws Error (plan) unless counts are positive, the scheduler can have so many chunks, and times
// and bytes are given once or for each virtual stage, none negative.
void validate(const Scheduler& scheduler, const ScheduleRequest& request);

// Throws Error (plan) if the activations of a stage exceed the request's limit, with the numbers
// and the schedulers that would keep to it.
void refuse_if_above_limit(const Schedule& schedule, const ScheduleRequest& request);

// A schedule with the scheduler's name and placement, and with empty orders.
Schedule empty_schedule(const Scheduler& scheduler, const ScheduleRequest& request);

// Leaves out the microbatches from `count` on. Actions need only actions of the same microbatch, so
// that a schedule without deadlock stays so: a pattern made for more microbatches serves fewer.
void keep_microbatches(Schedule& schedule, int count);

// Appends F and B to the stage's order, as one group.
void add_pair(Schedule& schedule, int stage, const Action& forward, const Action& backward);

// Joins each W with an F, B or I beside it into a group, if neither needs the other: "1I0 0F2 1W0"
// becomes "1I0 0F2+1W0".
void pair_wgrads(Schedule& schedule);

// The option `pair` of schedulers that can make groups. pairs() reads it.
Options pair_option(const char* doc, bool fallback);
bool pairs(const Values& values, bool fallback);

// Reads `options`, which the option `key` of `values` gives to the registration `found`. Throws
// Error (options) for what is wrong with them.
Values read_options(const Registration& found, const Values& values, const std::string& key,
                    const Json& options);

// A Scheduler whose order follows from the counts alone, and from whether F and B are paired.
class FixedScheduler : public Scheduler {
 public:
  using Fill = void (*)(const ScheduleRequest& request, bool pair, Schedule& schedule);
  FixedScheduler(Fill fill, int fixed_chunks, bool v_shaped, bool pair)
      : fill_(fill), fixed_chunks_(fixed_chunks), v_shaped_(v_shaped), pair_(pair) {}
  int fixed_chunks() const override { return fixed_chunks_; }
  std::vector<int> placement(int stages, int chunks) const override;
  Schedule make(const ScheduleRequest& request) const override;

 private:
  Fill fill_;
  int fixed_chunks_;
  bool v_shaped_, pair_;
};

// "1 chunk", "3 chunks"; the shortest text that reads back as the number.
std::string chunks_text(int chunks);
std::string number_text(double value);

}  // namespace pp
