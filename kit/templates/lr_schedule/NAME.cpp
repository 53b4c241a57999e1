// The learning-rate schedule @NAME@: the rate of each step, by its number alone.
#include <cmath>

#include "meshwright/lr_schedule.h"
#include "meshwright/plugin.h"

namespace {

// Up in a straight line, then down with the root of the step.
class @CLASS@ final : public mw::LearningRate {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("warmup", "steps in which the rate rises to the optimizer's")
        .at_least(1)
        .fallback(10)
        .positional("warmup");
  }
  @CLASS@(const mw::Values& values, const mw::LrContext& context)
      : lr_(context.lr), warmup_(static_cast<double>(values.integer("warmup"))) {}

  // Every rank asks, in its own thread, and a resumed run begins in the middle: keeps nothing.
  double at(std::int64_t step) const override {
    const auto s = static_cast<double>(step) + 1;
    return lr_ * std::fmin(s / warmup_, std::sqrt(warmup_ / s));
  }

 private:
  double lr_, warmup_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "a warm-up, then down with the root of the step",
                  mw::lr_schedule<@CLASS@>())
