// Calls scripts and plugins while ranks compute: what they throw, or a result that will not do,
// ends the run.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "meshwright/lr_schedule.h"
#include "script/read_experiment.h"

namespace mw {

// Calls a script's function while ranks run: its errors get the stage `run`, and keep the script's
// file and line.
using Call = std::function<Json(const std::vector<Json>&)>;
inline Call call_in_run(const ReadContext& context, const Json& function) {
  return [call = context.call, number = function.at(function_key).get<std::int64_t>()](
             const std::vector<Json>& arguments) {
    try {
      return call(number, arguments);
    } catch (const Stopped&) {
      throw;
    } catch (const Error& error) {
      std::vector<Problem> problems = error.problems();
      for (Problem& problem : problems) problem.stage = Stage::run;
      throw Error(std::move(problems));
    }
  };
}

// The number that a script's schedule returned; throws for anything else.
inline double rate_of(const Json& returned, std::int64_t step) {
  if (returned.is_number()) return returned.get<double>();
  throw Error(Stage::run, "function.result", "schedule",
              fmt::format("schedule: the function returned {} as the learning rate of step {}",
                          describe(returned), step),
              "return a finite number, 0 or more");
}

// The rates that a script's function computes. The function is called once for a step, under a
// lock, by whoever asks first: one that counts its calls or draws numbers gives all ranks the same.
// A result that is no finite number of 0 or more is an Error (run) that names the step.
inline LrSchedule checked_lr_schedule(std::function<double(std::int64_t step)> function) {
  struct Known {
    std::mutex mutex;
    std::unordered_map<std::int64_t, double> rates;  // rate by step
  };
  return [function = std::move(function), known = std::make_shared<Known>()](std::int64_t step) {
    const std::lock_guard lock(known->mutex);
    if (const auto found = known->rates.find(step); found != known->rates.end())
      return found->second;
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

// The rates of a registered schedule.
inline LrSchedule rates_in_run(std::shared_ptr<const LearningRate> rate,
                               const PluginPlace& speaker) {
  return [rate = std::move(rate), speaker](std::int64_t step) {
    const double lr = call_plugin(
        speaker, "was asked for a rate", [&] { return rate->at(step); }, Stage::run);
    if (std::isfinite(lr) && lr >= 0) return lr;
    throw Error(Stage::run, "plugin.fault", "schedule",
                fmt::format("schedule: {} gave {} as the learning rate of step {}", speaker.plugin,
                            lr, step),
                "mend the plugin");
  };
}

}  // namespace mw
