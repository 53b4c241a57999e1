// Reads the files of measured steps that `calibrate --from` is given.
#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "app/calibrate/calibrate.h"
#include "common/files.h"
#include "meshwright/options.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

const Options& step_options() {
  static const Options options = [] {
    Options o;
    o.text("script", "a script that plans the step; a relative path counts from the file of steps");
    o.number("step", "seconds that a step took, the median of many").range(1e-6, 1e6);
    o.integer("nodes", "of the cluster on which it ran").range(1, 1 << 20);
    o.list("set", "what --set would change of the script, { \"batch=64\" }")
        .fallback(Json::array());
    return o;
  }();
  return options;
}

Problem wrong_step(const std::string& place, const std::string& key, const std::string& message,
                   const std::string& hint) {
  return {Stage::options, "calibration.steps", key, message, hint, place};
}

// Null if it is no measured step.
Json read_step(const std::string& file, const std::string& place, const Json& given,
               Problems& problems) {
  const std::size_t before = problems.list().size();
  const Values v = step_options().read(given, place, problems);
  if (problems.list().size() > before) return {};
  fs::path script = v.text("script");
  if (!script.is_absolute()) script = fs::path(file).parent_path() / script;
  std::error_code error;  // does not throw where the name is too long
  if (!fs::is_regular_file(script, error)) {
    problems.add(wrong_step(place, place + ".script", "there is no script " + script.string(),
                            "a relative path counts from the file of steps"));
  }
  for (const Json& setting : v.at("set")) {
    if (setting.is_string()) continue;
    problems.add(wrong_step(place, place + ".set",
                            fmt::format("set has {}, which is no text", setting.dump()),
                            R"(each is what --set takes: "set": ["batch=64"])"));
  }
  return {{"place", place},
          {"script", script.string()},
          {"seconds", v.number("step")},
          {"nodes", v.int32("nodes")},
          {"settings", v.at("set")}};
}

}  // namespace

Json read_steps(const std::string& file, const std::string& text, Problems& problems) {
  const Json list = json_in(text);
  if (!list.is_array() || list.empty()) {
    problems.add(wrong_step(file, "--from", "it is no list of measured steps",
                            R"([{ "script": "mine.lua", "step": 1.234, "nodes": 4 }])"));
    return Json::array();
  }
  Json steps = Json::array();
  for (std::size_t k = 0; k < list.size(); ++k) {
    Json step = read_step(file, fmt::format("{}[{}]", file, k + 1), list[k], problems);
    if (!step.is_null()) steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace mw
