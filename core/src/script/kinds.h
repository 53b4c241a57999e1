// What the keys of an experiment share: a script's functions.
#pragma once

#include <functional>
#include <vector>

#include "base/interrupt.h"
#include "base/json_text.h"
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

}  // namespace mw
