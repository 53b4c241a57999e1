// Learning-rate schedules that a script can name: constant, cosine with warm-up, or a function
// of the step, whose results are checked.
#include "input/lr_schedule.h"

#include <fmt/core.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <numbers>
#include <unordered_map>

namespace mw {

namespace {

class ConstantKind final : public LrScheduleKind {
 public:
  std::string name() const override { return "constant"; }
  std::string doc() const override { return "The optimizer's learning rate at every step."; }
  const Options& options() const override { return options_; }
  LrSchedule make(const Values&, const std::string&, const LrContext& context,
                  Problems&) const override {
    return [lr = context.lr](std::int64_t) { return lr; };
  }

 private:
  Options options_;
};

class CosineKind final : public LrScheduleKind {
 public:
  CosineKind() {
    options_.integer("warmup", "steps over which the rate rises linearly to lr")
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
  std::string name() const override { return "cosine"; }
  std::string doc() const override { return "Linear warm-up, then half a cosine down to `min`."; }
  const Options& options() const override { return options_; }

  LrSchedule make(const Values& values, const std::string& path, const LrContext& context,
                  Problems& problems) const override {
    const std::int64_t warmup = values.integer("warmup");
    const std::int64_t total = values.has("total") ? values.integer("total") : context.steps;
    const double lr = context.lr, least = values.number("min");
    bool valid = true;
    // Without a total of its own a short trial of a long run shall work:
    // it ends inside the warm-up.
    if (values.has("total") && warmup > total) {
      problems.add(Stage::options, "option.range", path + ".warmup",
                   fmt::format("{}.warmup: {} steps of warm-up do not fit into total = {}", path,
                               warmup, total),
                   fmt::format("use warmup = {} or less, or a larger total", total));
      valid = false;
    }
    if (least > lr) {
      problems.add(Stage::options, "option.range", path + ".min",
                   fmt::format("{}.min: {} is above the optimizer's lr = {}", path, least, lr),
                   "min is a learning rate, not a fraction of lr");
      valid = false;
    }
    if (!valid) return nullptr;
    return [=](std::int64_t step) {
      if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
      if (step >= total) return least;
      const double progress =
          static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
      return least + (lr - least) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    };
  }

 private:
  Options options_;
};

}  // namespace

const std::vector<const LrScheduleKind*>& lr_schedule_kinds() {
  static const ConstantKind constant;
  static const CosineKind cosine;
  static const std::vector<const LrScheduleKind*> kinds{&constant, &cosine};
  return kinds;
}

const LrScheduleKind* find_lr_schedule_kind(const std::string& name) {
  for (const LrScheduleKind* kind : lr_schedule_kinds())
    if (kind->name() == name) return kind;
  return nullptr;
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
