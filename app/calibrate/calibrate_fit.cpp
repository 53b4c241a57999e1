// Fits a calibration to what was measured: instructions one by one, then what several ranks add.
#include <algorithm>
#include <cmath>

#include "app/calibrate/calibrate.h"
#include "meshwright/engine/forecast.h"
#include "predict/prediction.h"
#include "predict/price.h"
#include "predict/shared_cores.h"
#include "predict/step_counts.h"

namespace mw {
namespace {

// What one step of a mix takes, all ranks together: core seconds of instructions and of transfers,
// and how many transfers there are.
struct Sums {
  double work = 0, transfers = 0, calls = 0;
};

Sums sums_of(const Plan& plan, const Machine& cores, const Calibration& calibration) {
  Sums sums;
  for (const Program& program : plan.programs) {
    for (const RankClass& kind : rank_classes(program)) {
      const RankView rank(program, kind.at);
      const auto ranks = static_cast<double>(kind.ranks);
      const StepTime time = price_step(rank, cores, 1);
      sums.work += ranks * (time.compute - calibration.step);
      for (const auto& [key, transfer] : time.transfers) sums.transfers += ranks * transfer.seconds;
      for (const auto& [key, use] : forecast_traffic(rank))
        sums.calls += ranks * static_cast<double>(use.calls);
    }
  }
  return sums;
}

Prediction predicted(const MeasuredMix& mix, const Calibration& calibration) {
  const SharedCores machine(calibration.device, std::make_shared<Calibration>(calibration));
  return predict(*mix.experiment.plan, machine, 1);
}

void fit_group(const std::vector<const MeasuredMix*>& mixes, const Calibration& calibration,
               SharedCosts& costs) {
  costs = {};
  if (mixes.empty()) return;
  // Each factor is fitted as its least value plus a rest, as no fitted number is negative.
  std::vector<std::vector<double>> rows;
  std::vector<double> beyond, of, calls;
  const SharedCores machine(calibration.device, std::make_shared<Calibration>(calibration));
  for (const MeasuredMix* mix : mixes) {
    const Plan& plan = *mix->experiment.plan;
    const Sums sums = sums_of(plan, *machine.by_core_seconds(), calibration);
    const double ranks = plan.ranks();
    rows.push_back({sums.work, sums.transfers, sums.calls, ranks});
    of.push_back(mix->measured.cpu);
    beyond.push_back(of.back() - least_factor * (sums.work + sums.transfers) -
                     calibration.step * ranks);
    calls.push_back(sums.calls / ranks);
  }
  const std::vector<double> factors = fit_robustly(rows, beyond, of);
  costs.work = least_factor + factors[0];
  costs.transfer = least_factor + factors[1];
  costs.call = factors[2];
  costs.step = factors[3];
  Calibration fitted = calibration;
  fitted.few = fitted.many = costs;
  rows.clear();
  beyond.clear();
  of.clear();
  for (std::size_t m = 0; m < mixes.size(); ++m) {
    const double step = predicted(*mixes[m], fitted).step_seconds;
    rows.push_back({step, calls[m]});
    of.push_back(mixes[m]->measured.seconds);
    beyond.push_back(of.back() - least_factor * step);
  }
  const std::vector<double> wall = fit_robustly(rows, beyond, of);
  costs.wall = least_factor + wall[0];
  costs.idle = wall[1];
}

}  // namespace

void fit_instructions(const WorkSamples& samples, Calibration& calibration) {
  // Fits a step's core seconds as a factor times the sum of its instructions' times, plus a
  // constant.
  std::vector<std::vector<double>> rows;
  std::vector<double> wanted;
  for (const auto& [together, cpu] : samples.steps) {
    rows.push_back({together, 1});
    wanted.push_back(cpu);
  }
  const std::vector<double> factors = fit_robustly(rows, wanted);
  const double share = factors.empty() || factors[0] <= 0 ? 1 : factors[0];
  calibration.step = factors.empty() ? 0 : factors[1];
  calibration.work.clear();
  for (const auto* all : {&samples.pooled, &samples.by_kind}) {
    for (const auto& [element, kinds] : *all) {
      for (const auto& [kind, measured] : kinds) {
        std::vector<WorkSample> scaled = measured;
        for (WorkSample& s : scaled) s.seconds *= share;
        calibration.work[element][kind] = fit_work(scaled);
      }
    }
  }
}

void fit_mixes(const std::vector<MeasuredMix>& mixes, Calibration& calibration) {
  calibration.few = calibration.many = {};
  std::vector<const MeasuredMix*> few, many;
  for (const MeasuredMix& mix : mixes)
    (mix.experiment.plan->ranks() > calibration.cores ? many : few).push_back(&mix);
  // A group without a mix (one core, or more cores than the mixes have ranks) gets the other
  // group's costs.
  SharedCosts of_few, of_many;
  fit_group(few.empty() ? many : few, calibration, of_few);
  fit_group(many.empty() ? few : many, calibration, of_many);
  calibration.few = of_few;
  calibration.many = of_many;
  calibration.mixes.clear();
  calibration.step_error = calibration.cpu_error = 0;
  for (const MeasuredMix& mix : mixes) {
    const Prediction p = predicted(mix, calibration);
    const MeasuredStep& measured = mix.measured;
    calibration.mixes.push_back({mix.experiment.plan->mix(), mix.experiment.plan->ranks(),
                                 measured.seconds, measured.cpu, p.step_seconds, p.cpu_seconds});
    const auto share = 1 / static_cast<double>(mixes.size());
    calibration.step_error += share * std::abs(p.step_seconds / measured.seconds - 1);
    calibration.cpu_error += share * std::abs(p.cpu_seconds / measured.cpu - 1);
  }
}

}  // namespace mw
