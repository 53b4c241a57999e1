// Reads a run file's tables and makes of them what reports show: medians, highest peaks, bytes.
#include "record/run_facts.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "record/hdf5_file.h"
#include "record/run_reader.h"
#include "record/warm_up.h"

namespace mw {
namespace {

void raise(double& value, std::int64_t bytes) {
  if (bytes >= 0 && !(value >= static_cast<double>(bytes))) value = static_cast<double>(bytes);
}

double middle_of(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return not_known;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void read_steps(RunReader& reader, RunFacts& facts) {
  facts.steps = reader.steps();
  std::vector<double> seconds, rates, mfu, bubble;
  for (std::size_t i = warm_up(facts.steps.size()); i < facts.steps.size(); ++i) {
    const StepRow& step = facts.steps[i];
    seconds.push_back(step.seconds);
    rates.push_back(step.tokens_per_second);
    mfu.push_back(step.mfu);
    bubble.push_back(step.bubble);
  }
  facts.step_seconds.measured = middle_of(seconds);
  facts.tokens_per_second = middle_of(rates);
  facts.mfu = middle_of(mfu);
  facts.bubble = middle_of(bubble);
  double nearest = not_known;
  for (std::size_t i = warm_up(facts.steps.size()); i < facts.steps.size(); ++i) {
    const double away = std::abs(facts.steps[i].seconds - facts.step_seconds.measured);
    if (away >= nearest) continue;
    nearest = std::isnan(away) ? nearest : away;
    facts.median_step = facts.steps[i].step;
  }
}

void read_memory(Hdf5File& file, RunFacts& facts) {
  if (file.has("rank_memory")) {
    const Table ranks = file.read_table("rank_memory");
    for (const std::int64_t peak : ranks.integers("peak_bytes")) raise(facts.peak.measured, peak);
    for (const std::int64_t peak : ranks.integers("predicted_bytes"))
      raise(facts.peak.predicted, peak);
    for (const std::int64_t rank : ranks.integers("rank"))
      facts.ranks = std::max(facts.ranks, static_cast<int>(rank) + 1);
  }
  if (!file.has("memory")) return;
  const Table rows = file.read_table("memory");
  const auto categories = rows.texts("category");
  const auto measured = rows.integers("peak_bytes"), predicted = rows.integers("predicted_bytes");
  for (std::size_t row = 0; row < rows.rows; ++row) {
    MeasuredPair& category = facts.memory[categories[row]];
    raise(category.measured, measured[row]);
    raise(category.predicted, predicted[row]);
  }
}

// The rows of the last step stand at the end of the table, whose tail is read in growing parts
// until it holds a row of the step before.
void read_bytes(Hdf5File& file, RunFacts& facts) {
  const char* name = "communication";
  const std::uint64_t all = file.has(name) ? file.length(name) : 0;
  for (std::uint64_t part = std::min<std::uint64_t>(1024, all); all > 0;
       part = std::min(4 * part, all)) {
    const Table rows = file.read_table(name, all - part, part);
    const auto steps = rows.integers("step");
    if (part < all && steps.front() == steps.back()) continue;
    const auto axes = rows.texts("axis"), ops = rows.texts("op"), phases = rows.texts("phase");
    const auto measured = rows.integers("bytes"), predicted = rows.integers("predicted_bytes");
    std::map<std::tuple<std::string, std::string, std::string>, MeasuredPair> uses;
    for (std::size_t row = 0; row < rows.rows; ++row) {
      if (steps[row] != steps.back()) continue;
      MeasuredPair& use = uses[{axes[row], ops[row], phases[row]}];
      raise(use.measured, measured[row]);
      raise(use.predicted, predicted[row]);
    }
    for (const auto& [key, use] : uses) {
      MeasuredPair& axis =
          facts.bytes.try_emplace(std::get<0>(key), MeasuredPair{0, 0}).first->second;
      axis.measured += use.measured;
      axis.predicted += use.predicted;
    }
    return;
  }
}

void read_series(Hdf5File& file, RunFacts& facts) {
  if (!file.has("series") || !file.has("series/step")) return;
  const std::vector<double> steps = file.read_numbers("series/step");
  for (const std::string& place : file.datasets("series")) {
    if (place == "step") continue;
    const std::string path = "series/" + place, given = file.attribute(path.c_str(), "name");
    const std::vector<double> values = file.read_numbers(path);
    auto& series = facts.series[given.empty() ? place : given];
    for (std::size_t i = 0; i < std::min(values.size(), steps.size()); ++i) {
      // A step at which the metric was not given.
      if (!std::isnan(values[i])) series.emplace_back(std::llround(steps[i]), values[i]);
    }
  }
}

std::string text_if_there(Hdf5File& file, const char* name) {
  return file.has(name) ? file.read_text(name) : "";
}

}  // namespace

RunFacts read_run_facts(const std::filesystem::path& path, bool actions) {
  RunReader reader(path);
  Hdf5File file(path, Hdf5File::Mode::read);
  RunFacts facts;
  const auto attribute = [&](const char* name) { return file.attribute("/", name); };
  facts.status = attribute("status");
  facts.reason = attribute("reason");
  facts.name = attribute("name");
  facts.hash = attribute("hash");
  facts.created = attribute("created");
  facts.host = attribute("host");
  facts.versions = attribute("versions");
  facts.plan = text_if_there(file, "plan");
  facts.experiment = text_if_there(file, "experiment");
  if (const std::int64_t seed = file.integer("/", "seed", -1); seed >= 0)
    facts.seed = std::to_string(seed);
  read_steps(reader, facts);
  read_memory(file, facts);
  read_bytes(file, facts);
  facts.predicted = reader.predicted_actions();
  for (const ActionRow& action : facts.predicted) {
    if (!(facts.step_seconds.predicted >= action.end)) facts.step_seconds.predicted = action.end;
  }
  if (!actions) facts.predicted.clear();
  if (actions && facts.median_step >= 0) facts.actions = reader.actions(facts.median_step);
  read_series(file, facts);
  return facts;
}

}  // namespace mw
