// Runs one cell in the process that was started for it, and leaves its result for the sweep.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "app/sweep/folder.h"
#include "app/sweep/judge.h"
#include "app/sweep/planned.h"
#include "app/sweep/sweep.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"

namespace mw {

std::vector<Cell> cells_for(const SweepTable& sweep, const SweepProgram& program) {
  const GridCall call = [&program](const Json& function, const std::vector<Json>& arguments) {
    return program.context.call(function.at(function_key).get<std::int64_t>(), arguments);
  };
  std::vector<Cell> cells = cells_of(sweep, call);
  for (Cell& cell : cells) {
    if (program.force) cell.table["force"] = true;
  }
  check_like(cells, sweep.like, "same_loss_as");
  check_like(cells, sweep.baseline, "baseline");
  return cells;
}

void run_cell(const SweepTable& sweep, const CellOrder& order, const SweepProgram& program) {
  const std::vector<Cell> cells = cells_for(sweep, program);
  const auto cell = std::find_if(cells.begin(), cells.end(),
                                 [&](const Cell& one) { return one.name == order.name; });
  int code = 0;
  Json result = {{"kind", "cell"}, {"status", "failed"}, {"reason", nullptr}, {"hash", order.hash}};
  try {
    if (cell == cells.end()) {
      throw Error(Stage::script, "sweep.changed", "",
                  fmt::format("the script has no cell {} when it is run again", quote(order.name)),
                  "a sweep's script must make the same cells whenever it is run: no times, no "
                  "random numbers");
    }
    Cell own = *cell;
    own.table["name"] = order.name;
    own.table["log"] = order.folder + "/";
    if (own.table.contains("tensorboard") && !own.table["tensorboard"].is_null())
      own.table["tensorboard"] = order.folder + "/tensorboard";
    if (!order.traces) own.table["trace"] = Json::array();
    own.table["overwrite"] = true;  // the folder is this cell's: its script lies there already
    const Experiment experiment = experiment_of(own, program.context);
    if (const std::string hash = hash_of(own, experiment.hash); hash != order.hash) {
      throw Error(Stage::script, "sweep.changed", "",
                  fmt::format("the script makes another experiment of {} when it is run again "
                              "({}, not {})",
                              quote(order.name), hash, order.hash),
                  "a sweep's script must make the same cells whenever it is run: no times, no "
                  "random numbers, no files that change");
    }
    const Json trained = program.train(experiment);
    for (const auto& [key, value] : trained.items()) {
      if (key != "kind" && key != "text" && key != "hash") result[key] = value;
    }
    result["trained"] = result.value("status", "") == "done";
    if (result["status"] == "interrupted") code = 130;
  } catch (const Stopped&) {
    code = 130;
  } catch (const std::exception& thrown) {
    const auto* error = dynamic_cast<const Error*>(&thrown);
    const Problem problem = error != nullptr ? error->problems().front() : problem_of(thrown);
    program.say("error: " + problem.text());
    const bool memory = problem.code == "run.memory" || problem.code == "memory.exceeded";
    result["status"] = problem.stage == Stage::plan ? "refused" : "failed";
    result["reason"] = (memory ? "out of memory: " : "") + problem.text();
    if (!problem.hint.empty()) result["hint"] = problem.hint;
    code = exit_code_of(problem.stage);
  }
  if (code != 130) replace_file(order.folder + "/result.json", json_text(result) + "\n");
  std::fflush(nullptr);
  ::_exit(code);  // what the script does next is the sweep's, not the cell's
}

}  // namespace mw
