// `meshwright trace`: a run file's step as a Chrome trace and as a drawing.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "app/chrome_trace.h"
#include "app/command.h"
#include "app/runs_rows.h"
#include "app/trace_process.h"
#include "common/files.h"
#include "common/statistics.h"
#include "meshwright/engine/text.h"
#include "record/run_reader.h"

namespace mw {
namespace {

struct TraceArguments : Arguments {
  std::string run, trace, svg;
  std::optional<std::int64_t> step;  // the one of median duration if not given
  bool predicted = false;            // the prediction alone
};

Error refused(const TraceArguments& arguments, const std::string& why, std::string hint) {
  return {Stage::options, "trace.missing", "", fmt::format("{}: {}", arguments.run, why),
          std::move(hint)};
}

// Where the plan's schedule places the virtual stages; one stage without a schedule.
Schedule schedule_of(const Json& plan) {
  if (plan.contains("schedule") && plan["schedule"].is_string())
    return schedule_from_csv(plan["schedule"].get<std::string>(), "of the run");
  Schedule schedule;
  schedule.stage_of = {0};
  return schedule;
}

// The step whose duration is the median of those after the warm-up (the lower of two).
const StepRow& median_of(const std::vector<StepRow>& steps) {
  std::vector<const StepRow*> kept;
  kept.reserve(steps.size());
  for (std::size_t i = warm_up(steps.size()); i < steps.size(); ++i) kept.push_back(&steps[i]);
  const auto middle = kept.begin() + static_cast<std::ptrdiff_t>((kept.size() - 1) / 2);
  // NaN, which a damaged file may hold, has no order: it counts as the longest.
  const auto seconds = [](const StepRow* step) {
    return std::isnan(step->seconds) ? std::numeric_limits<double>::infinity() : step->seconds;
  };
  std::nth_element(kept.begin(), middle, kept.end(), [&](const StepRow* a, const StepRow* b) {
    return std::pair(seconds(a), a->step) < std::pair(seconds(b), b->step);
  });
  return **middle;
}

// The traced step whose duration is nearest to that of the median step; the median step if no step
// was traced.
const StepRow& traced_of(const std::vector<StepRow>& steps,
                         const std::vector<std::int64_t>& traced) {
  const StepRow& median = median_of(steps);
  const StepRow* nearest = nullptr;
  const auto distance = [&](const StepRow& step) {
    return std::abs(step.seconds - median.seconds);
  };
  for (const StepRow& step : steps) {
    if (std::find(traced.begin(), traced.end(), step.step) == traced.end()) continue;
    if (nearest == nullptr || distance(step) < distance(*nearest)) nearest = &step;
  }
  return nearest == nullptr ? median : *nearest;
}

const StepRow& chosen_step(const TraceArguments& arguments, const std::vector<StepRow>& steps,
                           const std::vector<std::int64_t>& traced) {
  if (steps.empty()) {
    throw refused(arguments, "it has no steps: none was finished and written",
                  "with --predicted the plan's own timeline is drawn");
  }
  if (!arguments.step) return traced_of(steps, traced);
  const auto distance = [&](const StepRow& s) { return std::abs(s.step - *arguments.step); };
  const auto nearest =
      std::min_element(steps.begin(), steps.end(),
                       [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  if (nearest->step != *arguments.step) {
    throw refused(arguments,
                  fmt::format("--step {}: it has steps {} to {}", *arguments.step,
                              steps.front().step, steps.back().step),
                  fmt::format("nearest: --step {}", nearest->step));
  }
  return *nearest;
}

double last_end(const TraceProcess& process) {
  double end = 0;
  for (const TraceRow& row : process.rows)
    for (const TimedAction& action : row.actions) end = std::max(end, action.end);
  return end;
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.2f} ms", 1e3 * seconds);
}

std::string drawing(const std::vector<TraceProcess>& processes, const std::string& title,
                    const std::string& caption) {
  std::vector<std::vector<TimedAction>> rows;
  std::vector<std::string> names;
  for (const TraceProcess& process : processes) {
    for (const TraceRow& row : process.rows) {
      rows.push_back(row.actions);
      for (TimedAction& work : rows.back()) {
        work.start *= 1e3;
        work.end *= 1e3;
      }
      names.push_back(processes.size() > 1 ? fmt::format("{}: {}", process.name, row.name)
                                           : row.name);
    }
  }
  return draw_svg(rows, names, title, "along the axis: milliseconds\n" + caption);
}

// The timelines of the measured step, if it is asked for, and of the predicted one. Adds their
// numbers to `result`, and lines about them to `caption`.
std::vector<TraceProcess> read_processes(const TraceArguments& arguments, RunReader& reader,
                                         const Schedule& schedule, Json& result,
                                         std::vector<std::string>& caption) {
  std::vector<TraceProcess> processes;
  if (!arguments.predicted) {
    const std::vector<StepRow> steps = reader.steps();
    const std::vector<std::int64_t> traced = reader.traced_steps();
    const StepRow& step = chosen_step(arguments, steps, traced);
    processes.push_back(process_of("measured", reader.actions(step.step), schedule));
    add_lanes(processes.back(), reader.table_of_step("trace", step.step));
    add_counters(processes.back(), reader.table_of_step("trace_memory", step.step));
    if (processes.back().rows.empty()) {
      throw refused(arguments, fmt::format("/actions has no rows of step {}", step.step),
                    "with --predicted the plan's own timeline is drawn");
    }
    result["step"] = step.step;
    result["seconds"] = step.seconds;
    caption.push_back(fmt::format("measured: {}{}", milliseconds(last_end(processes.back())),
                                  arguments.step   ? ""
                                  : traced.empty() ? ", the median step after the warm-up"
                                                   : ", of the steps with ops and transfers the "
                                                     "nearest to the median"));
  }
  const std::vector<ActionRow> predicted = reader.predicted_actions();
  if (!predicted.empty()) {
    processes.push_back(process_of("predicted", predicted, schedule));
    add_lanes(processes.back(), reader.table("predicted_trace"));
    add_counters(processes.back(), reader.table("predicted_trace_memory"));
    result["predicted_seconds"] = last_end(processes.back());
    caption.push_back(fmt::format("predicted: {}, the slowest rank of each stage",
                                  milliseconds(last_end(processes.back()))));
  } else if (arguments.predicted) {
    throw refused(arguments, "it has no /predicted_actions", "leave --predicted out");
  }
  return processes;
}

void write_trace(const TraceArguments& arguments, Output& output) {
  RunReader reader(arguments.run);
  const OutputFile trace{"-o", arguments.trace, OutputKind::trace},
      svg{"--svg", arguments.svg, OutputKind::drawing};
  check_outputs({trace, svg}, {{"the run file", arguments.run}});
  if (arguments.trace.empty() && arguments.svg.empty()) {
    throw Error(Stage::options, "usage.missing", "", "trace: no file to write is named",
                "-o trace.json (for https://ui.perfetto.dev or chrome://tracing), --svg step.svg, "
                "or both");
  }
  const Json plan = json_in(reader.plan());
  Json result = {
      {"kind", "trace"}, {"run", arguments.run}, {"step", nullptr}, {"seconds", nullptr}};
  std::vector<std::string> caption;
  const std::vector<TraceProcess> processes =
      read_processes(arguments, reader, schedule_of(plan), result, caption);
  std::string title = plan.is_object() && plan.contains("mix") && plan["mix"].is_string()
                          ? plan["mix"].get<std::string>()
                          : arguments.run;
  if (!result["step"].is_null())
    title += fmt::format(", step {}", result["step"].get<std::int64_t>());
  result["trace"] = arguments.trace.empty() ? Json() : Json(arguments.trace);
  result["svg"] = arguments.svg.empty() ? Json() : Json(arguments.svg);
  if (!arguments.trace.empty()) {
    const Json about = {{"run", arguments.run}, {"title", title}};
    write_output(trace, chrome_trace(processes, about));
  }
  if (!arguments.svg.empty()) write_output(svg, drawing(processes, title, join(caption, "\n")));
  if (!output.json()) {
    std::string text = title + "\n";
    for (const std::string& line : caption) text += "  " + line + "\n";
    for (const std::string& file : {arguments.trace, arguments.svg})
      if (!file.empty()) text += fmt::format("  written: {}\n", file);
    output.text(text);
  }
  output.result(result);
}

// Writes a step of a run file as a timeline, measured beside predicted.
int show_trace(const TraceArguments& arguments, Output& output) {
  reading(arguments.run, [&] { write_trace(arguments, output); });
  return 0;
}

const CommandOf<TraceArguments> trace_command{
    {"trace", 130, "a run file's step as a Chrome trace or a drawing, measured beside predicted"},
    [](CLI::App& command, TraceArguments& a) {
      command.add_option("FILE", a.run, "a run file: what a script's log names")->required();
      command.add_option("-o,--output", a.trace, "write a Chrome trace (Perfetto opens it)")
          ->type_name("FILE");
      command.add_option("--svg", a.svg, "write a drawing")->type_name("FILE");
      command
          .add_option("--step", a.step,
                      "the step to draw; by default the one of median duration after the warm-up")
          ->check(CLI::Range(-(std::int64_t{1} << 60), std::int64_t{1} << 60).description(""))
          ->type_name("N");
      command.add_flag("--predicted", a.predicted, "the predicted timeline alone");
      command.footer("Example: meshwright trace runs/pipeline.h5 -o trace.json --svg step.svg");
      add_json(command, a);
    },
    show_trace};

}  // namespace
}  // namespace mw
