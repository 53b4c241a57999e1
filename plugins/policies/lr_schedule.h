// The learning rate of each step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "meshwright/lr_schedule.h"

namespace mw {

// The learning rate of step 0, 1, ... Every rank asks for it, in its own thread: must be safe to
// call from several at once, and give one answer for a step.
using LrSchedule = std::function<double(std::int64_t step)>;

// constant: lr at every step.
// cosine {warmup = 0, total = the run's steps, min = 0}, with s the step and w the warm-up:
//   s < w:      lr (s + 1) / w
//   s < total:  min + (lr - min) (1 + cos(pi (s - w) / (total - w))) / 2
//   after:      min
// (Loshchilov and Hutter 2017, one cycle, after a linear warm-up.) `min` is a learning rate. A run
// shorter than its warm-up ends inside it; a `total` that was given and is shorter is refused.
std::vector<Registration> built_in_lr_schedules();

LrSchedule lr_schedule_of(std::shared_ptr<const LearningRate> rate);

// A schedule that a script's function computes. The function is called once for a step, under a
// lock, by whoever asks first: one that counts its calls or draws numbers gives all ranks the same.
// A result that is no finite number of 0 or more is an Error (run) that names the step.
LrSchedule checked_lr_schedule(std::function<double(std::int64_t step)> function);

}  // namespace mw
