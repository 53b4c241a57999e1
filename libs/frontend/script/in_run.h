// What a run asks scripts and plugins while ranks compute: what they throw, or give that will not
// do, ends the run.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/json_text.h"
#include "meshwright/engine/plugin_call.h"
#include "plugins/policies/lr_schedule.h"
#include "script/read_experiment.h"

namespace mw {

// A script's function that fails while ranks run has failed the run, not refused it. The message
// keeps the script's file and line.
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

// What a script's schedule returned, where that is a number.
inline double rate_of(const Json& returned, std::int64_t step) {
  if (returned.is_number()) return returned.get<double>();
  throw Error(Stage::run, "function.result", "schedule",
              fmt::format("schedule: the function returned {} as the learning rate of step {}",
                          describe(returned), step),
              "return a finite number, 0 or more");
}

// The rates of a registered schedule.
inline LrSchedule rates_in_run(LrSchedule schedule, const Speaker& speaker) {
  return [schedule = std::move(schedule), speaker](std::int64_t step) {
    const double lr = call_plugin(
        speaker, "was asked for a rate", [&] { return schedule(step); }, Stage::run);
    if (std::isfinite(lr) && lr >= 0) return lr;
    throw Error(Stage::run, "plugin.fault", "schedule",
                fmt::format("schedule: {} gave {} as the learning rate of step {}", speaker.plugin,
                            lr, step),
                "mend the plugin");
  };
}

}  // namespace mw
