// The interface of learning-rate schedules, which plugins may implement; mw.cosine { … } is a
// built-in one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "meshwright/registration.h"

namespace mw {

// What a learning-rate schedule may depend on beside its own options.
struct LrContext {
  double lr = 0;           // the optimizer's learning rate
  std::int64_t steps = 0;  // number of steps of the run
};

// A learning-rate schedule. All ranks call it in their own threads, so it must be thread-safe, and
// must return the same rate for a step on all of them.
class LearningRate {
 public:
  virtual ~LearningRate() = default;
  virtual double at(std::int64_t step) const = 0;  // `step` counts from 0
};

// A schedule as a function; it must be thread-safe and consistent, as LearningRate::at.
using LrSchedule = std::function<double(std::int64_t step)>;

// A schedule's constructor takes (const Values&, const LrContext&).
template <>
struct KindOf<LearningRate> {
  static constexpr Kind kind = Kind::lr_schedule;
  using Make = std::unique_ptr<LearningRate>(const Values& values, const LrContext& context);
};
template <class Class>
constexpr Registration lr_schedule(const char* name = nullptr, const char* doc = nullptr) {
  return registration<LearningRate, Class>(name, doc);
}

}  // namespace mw
