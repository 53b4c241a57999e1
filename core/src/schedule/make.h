// What all schedulers share: requests and their refusal, and how orders are put together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meshwright/schedule.h"

namespace mw {

// Throws Error (plan) unless counts are positive, chunks are what the scheduler can, and times and
// bytes are given once or for each virtual stage, none negative.
void validate(const Scheduler& scheduler, const ScheduleRequest& request);

// Throws Error (plan) if the activations of a stage exceed the request's limit, with the numbers
// and the schedulers that would keep to it.
void refuse_if_above_limit(const Schedule& schedule, const ScheduleRequest& request);

// A schedule of the scheduler's name and placement, without work.
Schedule empty_schedule(const Scheduler& scheduler, const ScheduleRequest& request);

// Leaves out microbatches from `count` on. Needs run within a microbatch only, so what was free of
// deadlock stays so: a pattern made for more microbatches than there are serves fewer.
void keep_microbatches(Schedule& schedule, int count);

// A Scheduler whose order follows from the counts alone.
class FixedScheduler : public Scheduler {
 public:
  using Fill = std::function<void(const ScheduleRequest& request, Schedule& schedule)>;
  FixedScheduler(std::string name, std::string doc, int fixed_chunks, bool v_shaped, Fill fill);
  std::string name() const override { return name_; }
  std::string doc() const override { return doc_; }
  int fixed_chunks() const override { return fixed_chunks_; }
  std::vector<int> placement(int stages, int chunks) const override;
  Schedule make(const ScheduleRequest& request) const override;

 private:
  std::string name_, doc_;
  int fixed_chunks_ = 0;
  bool v_shaped_ = false;
  Fill fill_;
};

// The orders, each in a file of its own; they fill `schedule.order`.
void fill_gpipe(const ScheduleRequest& request, Schedule& schedule);
void fill_looped_bfs(const ScheduleRequest& request, Schedule& schedule);
void fill_1f1b(const ScheduleRequest& request, Schedule& schedule);
void fill_interleaved(const ScheduleRequest& request, Schedule& schedule);
void fill_dualpipev(const ScheduleRequest& request, Schedule& schedule);

// The zero-bubble schedulers, which also read times and limit.
const Scheduler& zb_h1_scheduler();
const Scheduler& zb_h2_scheduler();
const Scheduler& zbv_scheduler();

}  // namespace mw
