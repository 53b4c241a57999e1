// Finds the steps during which other programs used cores that the ranks need, and takes medians of
// the other steps.
#include "common/run_timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/statistics.h"

namespace mw {
namespace {

// The fewest undisturbed steps of which a median is taken: this many, and this share of all steps.
constexpr std::size_t least_steps = 3;
constexpr double least_share = 0.2;
constexpr std::size_t stretches = 5;

// The relative standard error of the median. NaN: there are too few values.
double error_of_median(const std::vector<double>& values) {
  if (values.size() < stretches) return CoreUse::unknown;
  std::vector<double> medians;
  for (std::size_t s = 0; s < stretches; ++s) {
    const auto from = static_cast<std::ptrdiff_t>(s * values.size() / stretches),
               to = static_cast<std::ptrdiff_t>((s + 1) * values.size() / stretches);
    medians.push_back(median({values.begin() + from, values.begin() + to}));
  }
  const MeanAndDeviation spread = mean_and_deviation(medians);
  return spread.deviation / std::sqrt(static_cast<double>(stretches)) / spread.mean;
}

double mean_of(const std::vector<TimedStep>& steps, double CoreUse::*what) {
  double sum = 0, seconds = 0;
  for (const TimedStep& step : steps) {
    if (std::isnan(step.use.*what)) continue;
    sum += step.use.*what * step.seconds;
    seconds += step.seconds;
  }
  return seconds > 0 ? sum / seconds : CoreUse::unknown;
}

// NaN for 0, which a result has where there is no median.
double positive(double value) {
  return value > 0 ? value : CoreUse::unknown;
}

}  // namespace

double number_under(const Json& json, const char* key) {
  const bool there = json.is_object() && json.contains(key) && json[key].is_number();
  return there ? json[key].get<double>() : CoreUse::unknown;
}

int count_under(const Json& json, const char* key) {
  const double value = number_under(json, key);
  return value >= 0 && value <= 1e9 ? static_cast<int>(value) : 0;
}

Json number_or_null(double number) {
  return std::isfinite(number) ? Json(number) : Json();
}

double missing_cores(const CoreUse& use, int wanted, int cores) {
  const double others = std::isnan(use.others) ? 0 : use.others,
               throttled = std::isnan(use.throttled) ? 0 : use.throttled;
  return std::max(0.0, others + wanted - cores) + throttled;
}

RunTiming timing_of(const std::vector<TimedStep>& all, int wanted, int cores) {
  RunTiming timing;
  timing.cores = cores;
  timing.wanted = std::clamp(wanted, 1, cores);
  std::vector<TimedStep> steps = all;
  // The first measured stretch also covers the steps before it, which were too short to be measured
  // alone.
  const auto known = std::find_if(steps.begin(), steps.end(), [](const TimedStep& step) {
    return !std::isnan(step.use.others) || !std::isnan(step.use.throttled);
  });
  if (known != steps.end())
    std::for_each(steps.begin(), known, [&](TimedStep& step) { step.use = known->use; });
  steps.erase(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(warm_up(all.size())));
  timing.steps = steps.size();
  timing.use = {mean_of(steps, &CoreUse::others), mean_of(steps, &CoreUse::throttled),
                mean_of(steps, &CoreUse::clock)};
  std::vector<double> seconds, quiet, cpu;
  for (const TimedStep& step : steps) {
    seconds.push_back(step.seconds);
    if (step.cpu > 0) cpu.push_back(step.cpu);
    if (are_busy(missing_cores(step.use, timing.wanted, cores), timing.wanted)) {
      ++timing.disturbed_steps;
    } else {
      quiet.push_back(step.seconds);
    }
  }
  timing.disturbed =
      timing.disturbed_steps > 0 &&
      static_cast<double>(quiet.size()) <
          std::max<double>(least_steps, least_share * static_cast<double>(steps.size()));
  const std::vector<double>& counted = timing.disturbed ? seconds : quiet;
  timing.seconds = median(counted);
  timing.cpu = median(cpu);
  timing.error = error_of_median(counted);
  timing.cpu_error = error_of_median(cpu);
  return timing;
}

Json RunTiming::to_json() const {
  return {{"cores", cores},
          {"wanted_cores", wanted},
          {"others_cores", number_or_null(use.others)},
          {"throttled_cores", number_or_null(use.throttled)},
          {"clock", number_or_null(use.clock)},
          {"steps", steps},
          {"disturbed_steps", disturbed_steps},
          {"disturbed", disturbed},
          {"step_seconds", number_or_null(seconds)},
          {"step_error", number_or_null(error)},
          {"cpu_seconds", number_or_null(cpu)},
          {"cpu_error", number_or_null(cpu_error)}};
}

RunTiming read_timing(const Json& result) {
  RunTiming timing;
  timing.seconds = positive(number_under(result, "step_seconds"));
  timing.cpu = positive(number_under(result, "cpu_seconds_per_step"));
  const auto kept = result.find("timing");
  if (kept == result.end() || !kept->is_object()) return timing;
  const auto whole = [&](const char* key) { return count_under(*kept, key); };
  timing.cores = std::max(1, whole("cores"));
  timing.wanted = std::max(1, whole("wanted_cores"));
  timing.use = {number_under(*kept, "others_cores"), number_under(*kept, "throttled_cores"),
                number_under(*kept, "clock")};
  timing.steps = static_cast<std::size_t>(whole("steps"));
  timing.disturbed_steps = static_cast<std::size_t>(whole("disturbed_steps"));
  timing.disturbed = kept->contains("disturbed") && (*kept)["disturbed"] == true;
  timing.seconds = positive(number_under(*kept, "step_seconds"));
  timing.error = number_under(*kept, "step_error");
  timing.cpu = positive(number_under(*kept, "cpu_seconds"));
  timing.cpu_error = number_under(*kept, "cpu_error");
  return timing;
}

std::string disturbance_text(const RunTiming& timing) {
  if (timing.disturbed_steps == 0) return "";
  std::string text;
  if (missing_cores({timing.use.others, 0, 0}, timing.wanted, timing.cores) > 0)
    text = fmt::format("other programs had {:.2g} of {} cores", timing.use.others, timing.cores);
  if (timing.use.throttled > 0.01)
    text += fmt::format("{}a limit of its control group kept {:.2g} cores from it",
                        text.empty() ? "" : " and ", timing.use.throttled);
  if (text.empty()) text = "other programs used cores that the ranks need";
  return fmt::format("{} ({} of {} steps were disturbed)", text, timing.disturbed_steps,
                     timing.steps);
}

}  // namespace mw
