// The learning rate of each step, as a plugin may bring it: mw.cosine { … } is one that is built
// in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "meshwright/registration.h"

namespace mw {

// What a schedule may depend on beside its own options.
struct LrContext {
  double lr = 0;           // the optimizer's
  std::int64_t steps = 0;  // of the run
};

// Every rank asks for the rate, in its own thread: must be safe to call from several at once, and
// give one answer for a step.
class LearningRate {
 public:
  virtual ~LearningRate() = default;
  virtual double at(std::int64_t step) const = 0;  // counted from 0
};

// A script's rates, by the same rules.
using LrSchedule = std::function<double(std::int64_t step)>;

// Made by a constructor (const Values&, const LrContext&).
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
