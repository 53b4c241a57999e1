// Tells a script's function of each step, and takes the numbers that it returns.
#include "app/observe.h"

#include <fmt/format.h>

#include <algorithm>

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
  if (experiment_.loss_scale) {
    end.metrics.emplace_back("loss_scale", report.loss_scale);
    end.metrics.emplace_back("skipped", report.update_left_out ? 1 : 0);
  }
  if (report.held_out) end.metrics.emplace_back("held_out_loss", report.held_out->loss);
  const Json facts = experiment_.observe.empty() ? Json() : facts_of(report);
  for (const Experiment::Observing& one : experiment_.observe)
    take(one, one.call(report.step, facts), end);
  if (ended_) end.last = true;
}

void Observe::take(const Experiment::Observing& from, const Json& given, StepEnd& end) {
  if (given.is_null()) return;
  const auto refuse = [&](const std::string& what, const char* hint) {
    throw Error(Stage::run, "function.result", from.place,
                fmt::format("{}({}) returned {}", from.place, end.step, what), hint);
  };
  if (!given.is_object()) refuse(lua_text(given), "return { name = number }, or nothing");
  const std::size_t before = end.metrics.size();
  for (const auto& [name, value] : given.items()) {
    if (name.starts_with('$')) continue;
    if (name == "stop" && value.is_boolean()) {
      ended_ = ended_ || value.get<bool>();
      continue;
    }
    if (!value.is_number())
      refuse(fmt::format("{} = {}, which is no number", name, lua_text(value)),
             "return { name = number }");
    const auto others = end.metrics.begin() + static_cast<std::ptrdiff_t>(before);
    if (std::any_of(end.metrics.begin(), others,
                    [&, name = name](const auto& metric) { return metric.first == name; }))
      refuse(fmt::format("{}, which the run records itself, or another function", name),
             "give it another name");
    end.metrics.emplace_back(name, value.get<double>());
  }
}

}  // namespace mw
