// Takes each stage's median times of F, B, I and W from a run file, for a schedule that shall
// know them.
#include <fmt/format.h>

#include <map>

#include "common/statistics.h"
#include "meshwright/run_file.h"
#include "record/run_reader.h"
#include "record/warm_up.h"

namespace mw {

std::vector<WorkTimes> measured_times(const std::string& run_file,
                                      const std::vector<int>& stage_of) {
  RunReader file(run_file);
  std::map<std::pair<int, int>, int> vstage;  // of stage and chunk
  std::map<int, int> chunks;
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    vstage[{stage_of[v], chunks[stage_of[v]]++}] = static_cast<int>(v);
  }
  std::vector<std::map<std::string, std::vector<double>>> seconds(stage_of.size());
  const std::vector<StepRow> steps = file.steps();
  for (std::size_t s = warm_up(steps.size()); s < steps.size(); ++s) {
    for (const ActionRow& row : file.actions(steps[s].step)) {
      if (row.action.size() != 1) continue;  // no work: a receive, the finish
      const auto found = vstage.find({row.stage, row.chunk});
      if (found == vstage.end()) {
        throw Error(Stage::options, "run-file.stages", "times",
                    fmt::format("{}: stage {} has a chunk {}, which this plan has not", run_file,
                                row.stage, row.chunk),
                    "measure with the same stages and chunks");
      }
      seconds[found->second][row.action].push_back(row.end - row.start);
    }
  }
  std::vector<WorkTimes> times;
  for (std::size_t v = 0; v < seconds.size(); ++v) {
    auto& of = seconds[v];
    if (of["F"].empty() || (of["B"].empty() && (of["I"].empty() || of["W"].empty()))) {
      throw Error(Stage::options, "run-file.stages", "times",
                  fmt::format("{}: no times of virtual stage {}", run_file, v),
                  "name the run file of a finished run with the same stages and chunks");
    }
    WorkTimes t;
    t.forward = median(of["F"]);
    const bool split = !of["I"].empty() && !of["W"].empty();
    t.dgrad = split ? median(of["I"]) : median(of["B"]) / 2;
    t.wgrad = split ? median(of["W"]) : t.dgrad;
    times.push_back(t);
  }
  return times;
}

}  // namespace mw
