// Reads the files of measured steps that `calibrate --from` is given, and judges whether a
// description explains what they say.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "app/calibrate.h"
#include "common/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "predict/prediction.h"

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

void refuse_step(const std::string& place, const std::string& key, const std::string& message,
                 const std::string& hint, Problems& problems) {
  problems.add({Stage::options, "calibration.steps", key, message, hint, place});
}

StepEntry read_entry(const std::string& file, const std::string& place, const Values& v,
                     Problems& problems) {
  StepEntry entry{place, v.text("script"), v.number("step"), v.int32("nodes"), {}};
  if (!fs::path(entry.script).is_absolute())
    entry.script = (fs::path(file).parent_path() / entry.script).string();
  std::error_code error;  // a name may be longer than any file's
  if (!fs::is_regular_file(entry.script, error)) {
    refuse_step(place, place + ".script", "there is no script " + entry.script,
                "a relative path counts from the file of steps", problems);
  }
  for (const Json& setting : v.at("set")) {
    if (setting.is_string()) {
      entry.settings.push_back(setting.get<std::string>());
    } else {
      refuse_step(place, place + ".set", "set has " + setting.dump() + ", which is no text",
                  R"(each is what --set takes: "set": ["batch=64"])", problems);
    }
  }
  return entry;
}

}  // namespace

std::vector<StepEntry> read_steps(const std::string& file, const std::string& text,
                                  Problems& problems) {
  const Json list = json_in(text);
  if (!list.is_array() || list.empty()) {
    refuse_step(file, "--from", "it is no list of measured steps",
                R"([{ "script": "mine.lua", "step": 1.234, "nodes": 4 }])", problems);
    return {};
  }
  std::vector<StepEntry> entries;
  for (std::size_t k = 0; k < list.size(); ++k) {
    const std::string place = fmt::format("{}[{}]", file, k + 1);
    const std::size_t before = problems.list().size();
    const Values values = step_options().read(list[k], place, problems);
    if (problems.list().size() == before)
      entries.push_back(read_entry(file, place, values, problems));
  }
  return entries;
}

void refuse_repeated(const std::vector<StepEntry>& entries, Problems& problems) {
  const auto same = [](const StepEntry& a, const StepEntry& b) {
    std::error_code error;
    return a.nodes == b.nodes && a.settings == b.settings &&
           (a.script == b.script || fs::equivalent(a.script, b.script, error));
  };
  for (std::size_t k = 1; k < entries.size(); ++k) {
    const auto end = entries.begin() + static_cast<std::ptrdiff_t>(k);
    const auto earlier =
        std::find_if(entries.begin(), end, [&](const auto& one) { return same(one, entries[k]); });
    if (earlier == end) continue;
    problems.add({Stage::options, "calibration.twice", "--from",
                  fmt::format("it is the step of {}, which would count twice", earlier->place),
                  "give each step once: the median of all that were measured", entries[k].place});
  }
}

bool is_explained(double times) {
  return times < 2 && times > 0.5;
}

void refuse_unexplained(const StepEntry& entry, double priced, double nearest,
                        const std::string& base, Problems& problems) {
  if (is_explained(entry.seconds / nearest)) return;
  const double over = entry.seconds / priced;
  const char* unit = over > 300 && over < 3000            ? "milliseconds"
                     : over > 3e5 && over < 3e6           ? "microseconds"
                     : over > 1.0 / 120 && over < 1 / 30. ? "minutes"
                                                          : nullptr;
  const std::string hint =
      unit != nullptr
          ? fmt::format("\"step\" is in seconds: are these {}?", unit)
          : "\"step\" is in seconds of a whole step; does the script plan what was measured, with "
            "its \"set\" and \"nodes\"?";
  refuse_step(entry.place, entry.place + ".step",
              fmt::format("{} measured, and {} priced by {}, {} with all that a fit may change",
                          duration_text(entry.seconds), duration_text(priced), base,
                          duration_text(nearest)),
              hint, problems);
}

}  // namespace mw
