// Learning-rate schedules that a script can name: constant, cosine with warm-up, or a function
// of the step, whose results are checked.
#include "lr_schedule.h"

#include <fmt/core.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <numbers>
#include <unordered_map>

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
    // Without a total of its own a short trial of a long run shall work:
    // it ends inside the warm-up.
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

std::vector<Registration> built_in_lr_schedules() {
  return {
      lr_schedule<Constant>("constant", "The optimizer's learning rate at every step."),
      lr_schedule<Cosine>("cosine", "Linear warm-up, then half a cosine down to `min`."),
  };
}

LrSchedule lr_schedule_of(std::shared_ptr<const LearningRate> rate) {
  return [rate = std::move(rate)](std::int64_t step) { return rate->at(step); };
}

LrSchedule checked_lr_schedule(std::function<double(std::int64_t)> function) {
  struct Known {
    std::mutex mutex;
    std::unordered_map<std::int64_t, double> rates;  // by step
  };
  return [function = std::move(function), known = std::make_shared<Known>()](std::int64_t step) {
    const std::lock_guard lock(known->mutex);
    if (const auto found = known->rates.find(step); found != known->rates.end()) {
      return found->second;
    }
    const double lr = function(step);
    if (!std::isfinite(lr) || lr < 0) {
      throw Error(Stage::run, "function.result", "schedule",
                  fmt::format("schedule: the function returned {} as the learning rate of step {}",
                              lr, step),
                  "return a finite number, 0 or more");
    }
    known->rates.emplace(step, lr);
    return lr;
  };
}

}  // namespace mw
