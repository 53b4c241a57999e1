// Tells a script's function of each step, and takes the numbers that it returns.
#include "app/observe.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/measurements.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {

Json Observe::facts_of(const StepReport& report) const {
  Json facts = {{"loss", report.loss},
                {"grad_norm", report.grad_norm},
                {"lr", report.lr},
                {"tokens", experiment_.plan_at(report.step).tokens_per_step()},
                {"seconds", report.seconds}};
  if (report.held_out) facts["held_out_loss"] = report.held_out->loss;
  return facts;
}

void Observe::step(RankRun& /*rank*/, StepEnd& end) {
  if (end.report == nullptr) return;
  const StepReport& report = *end.report;
  Metrics metrics;
  if (experiment_.loss_scale) {
    metrics.emplace_back("loss_scale", report.loss_scale);
    metrics.emplace_back("skipped", report.update_left_out ? 1 : 0);
  }
  if (report.held_out) metrics.emplace_back("held_out_loss", report.held_out->loss);
  if (experiment_.observe) {
    take(report.step, experiment_.observe(report.step, facts_of(report)), metrics);
    if (ended_) end.last = true;
  }
  // If the run fails, this observer may be gone before the recorder adds the metrics.
  recorder_.hand_over([&measured = measured_, step = report.step, metrics = std::move(metrics)] {
    measured.add_metrics(step, metrics);
  });
}

void Observe::take(std::int64_t step, const Json& given, Metrics& metrics) {
  if (given.is_null()) return;
  if (!given.is_object()) {
    throw Error(Stage::run, "function.result", "observe",
                fmt::format("observe({}) returned {}", step, lua_text(given)),
                "return { name = number }, or nothing");
  }
  const auto own = static_cast<std::ptrdiff_t>(metrics.size());
  for (const auto& [name, value] : given.items()) {
    if (name.starts_with('$')) continue;
    if (name == "stop" && value.is_boolean()) {
      ended_ = value.get<bool>();
      continue;
    }
    if (!value.is_number()) {
      throw Error(Stage::run, "function.result", "observe",
                  fmt::format("observe({}) returned {} = {}, which is no number", step, name,
                              lua_text(value)),
                  "return { name = number }");
    }
    if (std::any_of(metrics.begin(), metrics.begin() + own,
                    [&, name = name](const auto& metric) { return metric.first == name; })) {
      throw Error(Stage::run, "function.result", "observe",
                  fmt::format("observe({}) returned {}, which the run records itself", step, name),
                  "give it another name");
    }
    metrics.emplace_back(name, value.get<double>());
  }
}

}  // namespace mw
