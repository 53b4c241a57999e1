// Calls a script's function for a pipeline schedule and reads what it returns, stage by stage.
#include <fmt/format.h>

#include "meshwright/engine/text.h"
#include "schedulers.h"

namespace pp {

Json describe_request(const ScheduleRequest& request) {
  Json times = Json::array();
  for (int v = 0; v < request.stages * request.chunks; ++v) {
    const WorkTimes& t = request.times_of(v);
    times.push_back({{"forward", t.forward}, {"dgrad", t.dgrad}, {"wgrad", t.wgrad}});
  }
  Json described = {{"stages", request.stages},
                    {"chunks", request.chunks},
                    {"microbatches", request.microbatches},
                    {"times", times}};
  if (request.memory_limit > 0) {
    described["memory"] = request.memory_limit;
    described["bytes"] = Json::array();
    for (int v = 0; v < request.stages * request.chunks; ++v) {
      const WorkBytes& b = request.bytes_of(v);
      described["bytes"].push_back({{"forward", b.forward}, {"dgrad", b.dgrad}});
    }
  }
  return described;
}

Schedule schedule_from_script(const Json& returned, const ScheduleRequest& request,
                              const std::string& name) {
  const auto refuse = [](const std::string& what) {
    return Error(Stage::plan, "function.result", "schedule",
                 "the schedule function returned " + what,
                 "return a list with one entry for each stage, such as \"0F0 0F1 0B0 0B1\"");
  };
  std::string text;
  if (returned.is_string()) {
    text = returned.get<std::string>();
  } else if (returned.is_array()) {
    for (std::size_t row = 0; row < returned.size(); ++row) {
      const Json& given = returned[row];
      if (given.is_string()) {
        text += given.get<std::string>();
      } else if (given.is_array()) {
        for (const Json& action : given) {
          if (!action.is_string()) {
            throw refuse(fmt::format("{} in the list of stage {}", lua_text(action), row));
          }
          text += action.get<std::string>() + " ";
        }
      } else {
        throw refuse(fmt::format("{} for stage {}", lua_text(given), row));
      }
      text += "\n";
    }
    if (static_cast<int>(returned.size()) != request.stages) {
      throw refuse(fmt::format("{} entries for pp({})", returned.size(), request.stages));
    }
  } else {
    throw refuse(returned.is_null() ? "nothing" : lua_text(returned));
  }
  Schedule schedule = schedule_from_text(text, name);
  if (schedule.stages() != request.stages) {
    throw refuse(fmt::format("actions of {} stages for pp({})", schedule.stages(), request.stages));
  }
  if (schedule.vstages() != request.stages * request.chunks) {
    throw Error(
        Stage::plan, "schedule.stages", "schedule",
        fmt::format("the schedule function uses {} virtual stages; pp({}) with {} chunks has "
                    "{}",
                    schedule.vstages(), request.stages, request.chunks,
                    request.stages * request.chunks),
        "set chunks, or use virtual stages 0 to ways * chunks - 1");
  }
  schedule.microbatches = std::max(schedule.microbatches, request.microbatches);
  return schedule;
}

}  // namespace pp
