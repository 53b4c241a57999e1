// Runs experiments for a calibration, and takes from their traces what instructions took.
#include <algorithm>
#include <cmath>

#include "app/calibrate/calibrate.h"
#include "common/statistics.h"
#include "meshwright/engine/footprint.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/run.h"

namespace mw {
namespace {

// The first steps of a run, which are not measured, as they touch memory for the first time.
constexpr std::int64_t steps_before = 2;

// `on_step` says whether the run ends after a step.
void run(const RunSetup& setup, std::function<bool(const StepReport&)> on_step) {
  OnStep observer(std::move(on_step));
  RunObserver* const observers[] = {&observer};
  train(setup, observers, stop_flag());
  throw_if_stopped();
}

}  // namespace

void OneRank::measure(double budget) {
  constexpr std::int64_t most = 400, least = 8;
  Experiment experiment = experiment_;
  experiment.steps = most;
  for (std::int64_t step = steps_before + 1; step < most; step += 2)
    experiment.trace.push_back(step);
  std::map<Where, std::vector<double>> seconds;
  std::vector<double> cpu;
  const double until = seconds_now() + budget;
  run(experiment, [&](const StepReport& report) {
    if (report.step < steps_before) return false;
    const std::vector<InstructionTime>& times = report.ranks.front().instructions;
    if (times.empty()) cpu.push_back(report.cpu_seconds);
    for (const InstructionTime& t : times)
      seconds[{t.segment, t.index, t.microbatch}].push_back(t.end - t.start);
    return report.step >= least && seconds_now() > until;
  });
  // A low quantile, since other programs take a thread's core now and then: the slow samples do not
  // measure the work.
  for (const auto& [where, all] : seconds) {
    const double taken = quantile(all, 0.3);
    const auto [known, first] = seconds_.try_emplace(where, taken);
    if (!first) known->second = std::min(known->second, taken);
  }
  cpu_ = std::min(cpu_, quantile(cpu, 0.4));
}

void OneRank::add_to(WorkSamples& samples) const {
  const Program& program = experiment_.plan->programs.front();
  const RankViews views(program, experiment_.plan->mesh.coordinates(0));
  using Alike = std::tuple<std::string, std::string, bool, double, double, double, double>;
  std::map<Alike, std::vector<double>> alike;
  double together = 0;
  for (const auto& [where, taken] : seconds_) {
    const auto& [segment, index, microbatch] = where;
    const Instruction& i = program.segments[segment].code[index];
    const RankView& view = views.of(microbatch);
    const SizedWork sized = sized_work(view, i, footprint(view, i, FootprintParts::work));
    const WorkSize& size = sized.size;
    together += taken;
    alike[{work_kind(program, i), work_class(program, i), sized.product, size.flops, size.bytes,
           size.dots, size.kernels}]
        .push_back(taken);
  }
  samples.steps.emplace_back(together, cpu_);
  const int element = bytes_of(program.dtype);
  for (const auto& [of, all] : alike) {
    const auto& [kind, of_class, product, flops, bytes, dots, kernels] = of;
    const WorkSample sample{{flops, bytes, dots, kernels}, std::max(1e-9, median(all))};
    samples.by_kind[element][kind].push_back(sample);
    if (!of_class.empty()) samples.pooled[element][of_class].push_back(sample);
    if (flops > 0 || bytes > 0)
      samples.pooled[element][product ? "product" : "other"].push_back(sample);
  }
}

MeasuredStep measure_step(Experiment experiment, double budget, double predicted) {
  constexpr double least = 7, most = 400;
  experiment.steps = static_cast<std::int64_t>(std::clamp(budget / predicted, least, most));
  std::vector<double> seconds, cpu;
  run(experiment, [&](const StepReport& report) {
    if (report.step < steps_before) return false;
    seconds.push_back(report.seconds);
    cpu.push_back(report.cpu_seconds);
    return false;
  });
  return {median(seconds), median(cpu)};
}

}  // namespace mw
