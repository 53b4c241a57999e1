// Learning-rate schedules that a script can name.
//
// constant: lr at every step.
// cosine {warmup = 0, total = the run's steps, min = 0}, with s the step and w the warm-up:
//   s < w:      lr (s + 1) / w
//   s < total:  min + (lr - min) (1 + cos(pi (s - w) / (total - w))) / 2
//   after:      min
// (Loshchilov and Hutter 2017, one cycle, after a linear warm-up.) `min` is a learning rate. A run
// shorter than its warm-up ends inside it; a `total` that was given and is shorter is refused.
#include "meshwright/lr_schedule.h"

#include <fmt/core.h>

#include <cmath>
#include <numbers>

#include "meshwright/plugin.h"

namespace mw {

namespace {

class Constant final : public LearningRate {
 public:
  Constant(const Values&, const LrContext& context) : lr_(context.lr) {}
  double at(std::int64_t) const override { return lr_; }

 private:
  double lr_;
};

class Cosine final : public LearningRate {
 public:
  static Options options() {
    return Options()
        .integer("warmup", "steps over which the rate rises linearly to lr")
        .fallback(0)
        .at_least(0)
        .unit("steps")
        .integer("total", "step from which the rate is `min`; the run's steps if left out")
        .optional()
        .at_least(1)
        .unit("steps")
        .number("min", "learning rate at the end")
        .fallback(0.0)
        .at_least(0);
  }

  Cosine(const Values& values, const LrContext& context)
      : warmup_(values.integer("warmup")),
        total_(values.has("total") ? values.integer("total") : context.steps),
        lr_(context.lr),
        least_(values.number("min")) {
    Problems problems;
    // Refused only where `total` is given: a short trial of a long run may end inside its warm-up.
    if (values.has("total") && warmup_ > total_) {
      problems.add(Stage::options, "option.range", "warmup",
                   fmt::format("{} steps of warm-up do not fit into total = {}", warmup_, total_),
                   fmt::format("use warmup = {} or less, or a larger total", total_));
    }
    if (least_ > lr_) {
      problems.add(Stage::options, "option.range", "min",
                   fmt::format("{} is above the optimizer's lr = {}", least_, lr_),
                   "min is a learning rate, not a fraction of lr");
    }
    problems.throw_if_any();
  }

  double at(std::int64_t step) const override {
    if (step < warmup_) return lr_ * static_cast<double>(step + 1) / static_cast<double>(warmup_);
    if (step >= total_) return least_;
    const double progress =
        static_cast<double>(step - warmup_) / static_cast<double>(total_ - warmup_);
    return least_ + (lr_ - least_) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }

 private:
  std::int64_t warmup_, total_;
  double lr_, least_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(lr_schedule<Constant>("constant",
                                          "The optimizer's learning rate at every step."),
                    lr_schedule<Cosine>("cosine",
                                        "Linear warm-up, then half a cosine down to `min`."));

}  // namespace mw
