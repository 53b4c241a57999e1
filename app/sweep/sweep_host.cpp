// The part of AppHost that checks, runs and reports a script's sweeps.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "app/app_host.h"
#include "app/command.h"
#include "app/report/write_report.h"
#include "app/sweep/axis.h"
#include "app/sweep/planned.h"
#include "app/verbs.h"
#include "meshwright/engine/text.h"
#include "script/read_experiment.h"

namespace mw {

namespace {

// The error with the command line as the place of those problems whose keys were given there.
Error at_the_command_line(const Error& error, const Json& command) {
  std::vector<Problem> problems = error.problems();
  for (Problem& problem : problems) {
    if (!problem.place.empty() || !command.contains(problem.key)) continue;
    const Json& value = command.at(problem.key);
    std::vector<std::string> words;
    for (const Json& one : value.is_array() ? value : Json::array({value})) {
      if (!one.is_boolean())
        words.push_back(one.is_string() ? one.get<std::string>() : describe(one));
    }
    problem.place = join({"--" + problem.key, join(words, " ")}, words.empty() ? "" : " ");
  }
  return Error(std::move(problems));
}

}  // namespace

void AppHost::check_sweep(const Json& table, const std::vector<AppliedSetting>& applied) {
  Problems problems;
  const SweepTable sweep = read_sweep(table, problems);
  for (const AppliedSetting& setting : applied) {
    const std::string axis = axis_that_sets(sweep.over, setting.path);
    if (axis.empty()) continue;
    Problem problem{Stage::options, "sweep.set", "base." + setting.path,
                    fmt::format("{} is set by the axis over.{}, cell by cell", setting.path, axis),
                    "choose among the cells with --only, or change the script"};
    problems.add(std::move(problem));
  }
  if (problems.empty() && !sweeps_.insert(sweep.name).second) {
    problems.add(Stage::script, "sweep.twice", "name",
                 fmt::format("name: there is a sweep {} in this script", quote(sweep.name)),
                 "give each a name, and so a folder, of its own");
  }
  problems.throw_if_any();
}

Json AppHost::run_sweep(const Json& table, const Json& options, const std::string& train_as,
                        const CallFunction& function) {
  const bool judged = train_as == "prove" || train_as == "verify";
  if (train_as != "train" && train_as != "plan" && !judged) {
    throw Error(
        Stage::script, "sweep.verb", "",
        fmt::format("{} cannot run a sweep: its cells can only be trained, predicted, proved "
                    "or verified",
                    train_as),
        "give the script to meshwright sweep, run, plan, prove or verify; same_loss_as "
        "compares cells");
  }
  Problems problems;
  const SweepTable sweep = read_sweep(table, problems);
  problems.throw_if_any();
  const auto in_words = [&](const auto& body) {
    try {
      return body();
    } catch (const Error& error) {
      throw at_the_command_line(error, sweeping_.command);
    }
  };
  GoOptions go = in_words([&] { return read_go(options, sweeping_.command); });
  go.predict = go.predict || train_as == "plan";
  go.quiet = go.quiet || output_.quiet();
  SweepProgram program;
  program.context = context_with(function);
  program.context.unchecked = go.predict;
  program.script = script_name_;
  program.files = script_;
  program.force = options_.force;
  if (judged) return each_plan(sweep, go, program, train_as, function);
  program.train = [this](const auto& experiment) {
    return run_train(experiment, script_, output_, plugins_);
  };
  program.plan = [](const auto& experiment) { return run_plan_verb(experiment); };
  program.say = [this](const std::string& text) { output_.note(text); };
  program.emit = [this](const Json& row) { output_.result(row); };
  program.again = sweeping_.again;
  program.words = sweeping_.words;
  if (!go.print.empty()) output_.keep_stdout();
  if (go.dry || !go.print.empty()) not_run_.insert(sweep.name);
  called_.insert("sweep");
  called_.insert(train_as);
  if (cell_ && cell_->sweep == sweep.name) run_cell(sweep, *cell_, program);
  SweepOutcome outcome = in_words([&] {
    return cell_ ? found_results(sweep, go, program) : mw::run_sweep(sweep, go, program);
  });
  if (!go.print.empty()) output_.document(outcome.text);
  const bool shows = go.print.empty() && !go.quiet && !cell_;
  if (outcome.failed && exit_code_ == 0) exit_code_ = exit_cells_failed;
  const Json& command = sweeping_.command;
  const bool ends = command.value("dry", false) || command.contains("print");
  Json result = {{"text", outcome.text}, {"shows", shows}, {"ends", ends}};
  result["cells"] = std::move(outcome.cells);
  return result;
}

Json AppHost::each_plan(const SweepTable& sweep, const GoOptions& go, const SweepProgram& program,
                        const std::string& verb, const CallFunction& function) {
  called_.insert(verb);
  not_run_.insert(sweep.name);
  ReadContext context = context_with(function);
  context.unchecked = true;
  std::vector<Json> results;
  // place of the result of each plan, by the plan's hash
  std::map<std::string, std::size_t> of_plan;
  std::vector<std::pair<std::string, int>> cells;
  for (const Cell& cell : cells_for(sweep, program)) {
    if (!cell.skipped.empty() || !matches(cell.name, go.only)) continue;
    try {
      const Experiment experiment = experiment_of(cell, context);
      const auto [known, fresh] = of_plan.emplace(experiment.plan->hash(), results.size());
      if (!fresh) {
        ++cells[known->second].second;
        continue;
      }
      results.push_back(call(verb, {cell.table}, function));
    } catch (const Error& error) {
      const auto& problems = error.problems();
      const bool planner = std::all_of(problems.begin(), problems.end(),
                                       [](const Problem& p) { return p.stage == Stage::plan; });
      if (!planner) throw;
      results.push_back({{"kind", verb},
                         {"verdict", "refused"},
                         {"text", "  " + problems.front().text() + "\n"}});
      if (exit_code_ == 0) exit_code_ = exit_code_of(Stage::plan);
    }
    // Keys that a script may read of any row of a sweep.
    results.back()["name"] = cell.name;
    results.back()["values"] = cell.texts();
    results.back()["status"] = results.back()["verdict"];  // not "done": it has no measured numbers
    cells.emplace_back(cell.name, 0);
  }
  std::string text = fmt::format("sweep {}: {} of {}\n", sweep.name, verb,
                                 plural(static_cast<std::int64_t>(results.size()), "plan"));
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& [name, more] = cells[i];
    text +=
        fmt::format("\n{}{}:\n{}", name,
                    more > 0 ? fmt::format(" and {} of the same plan", plural(more, "cell")) : "",
                    results[i].value("text", ""));
  }
  return {{"cells", results}, {"text", text}, {"shows", true}, {"ends", false}};
}

std::string AppHost::report_sweep(const Json& table, const std::string& file, const Json& options) {
  Problems problems;
  const SweepTable sweep = read_sweep(table, problems);
  const Options known = Options()
                            .text("title", "the page's title")
                            .fallback("")
                            .text("baseline", "the mix, value or cell that others stand beside")
                            .fallback("");
  const Values values =
      known.read(options.is_null() ? Json::object() : options, "report", problems);
  problems.throw_if_any();
  if (cell_) return file;  // the process of one cell: its parent writes the report
  const GoOptions go = read_go(Json::object(), sweeping_.command);
  if (go.dry || !go.print.empty() || not_run_.count(sweep.name) > 0) return file;
  const ReportInput input{
      {sweep.folder()}, keys_of_run(), values.text("title"), values.text("baseline")};
  const Json summary = write_report("sweep:report", file, input);
  output_.text(fmt::format("{}\n  report: {}", summary.at("text").get<std::string>(), file));
  return file;
}

}  // namespace mw
