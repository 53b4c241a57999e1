// Reads a run file's tables and makes of them what reports show: medians, highest peaks, bytes.
#include "record/run_facts.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "common/statistics.h"
#include "meshwright/options.h"
#include "record/columns.h"

namespace mw {
namespace {

void raise(double& value, std::int64_t bytes) {
  if (bytes >= 0 && !(value >= static_cast<double>(bytes))) value = static_cast<double>(bytes);
}

void read_steps(RunReader& reader, RunFacts& facts) {
  facts.steps = reader.steps();
  const RunSpeed speed = speed_of(facts.steps, read_timing(facts.result));
  facts.step_seconds.measured = speed.step_seconds;
  facts.tokens_per_second = speed.tokens_per_second;
  facts.mfu = speed.mfu;
  std::vector<double> bubble;
  for (std::size_t i = warm_up(facts.steps.size()); i < facts.steps.size(); ++i)
    bubble.push_back(facts.steps[i].bubble);
  facts.bubble = median(bubble);
  double nearest = not_known;
  for (std::size_t i = warm_up(facts.steps.size()); i < facts.steps.size(); ++i) {
    const double away = std::abs(facts.steps[i].seconds - facts.step_seconds.measured);
    if (away >= nearest) continue;
    nearest = std::isnan(away) ? nearest : away;
    facts.median_step = facts.steps[i].step;
  }
}

void read_memory(RunReader& reader, RunFacts& facts) {
  const Table ranks = reader.table("rank_memory");
  for (const std::int64_t peak : ranks.integers("peak_bytes")) raise(facts.peak.measured, peak);
  for (const std::int64_t peak : ranks.integers("predicted_bytes"))
    raise(facts.peak.predicted, peak);
  for (const std::int64_t rank : ranks.integers("rank"))
    facts.ranks =
        std::max(facts.ranks, static_cast<int>(std::clamp<std::int64_t>(rank, -1, 1 << 30)) + 1);
  const Table rows = reader.table("memory");
  const auto categories = rows.texts("category");
  const auto measured = rows.integers("peak_bytes"), predicted = rows.integers("predicted_bytes");
  for (std::size_t row = 0; row < rows.rows; ++row) {
    MeasuredPair& category = facts.memory[categories[row]];
    raise(category.measured, measured[row]);
    raise(category.predicted, predicted[row]);
  }
}

void read_bytes(RunReader& reader, RunFacts& facts) {
  if (facts.steps.empty()) return;
  const Table rows = reader.table_of_step("communication", facts.steps.back().step);
  const auto axes = rows.texts("axis"), ops = rows.texts("op"), phases = rows.texts("phase");
  const auto measured = rows.integers("bytes"), predicted = rows.integers("predicted_bytes");
  std::map<std::tuple<std::string, std::string, std::string>, MeasuredPair> uses;
  for (std::size_t row = 0; row < rows.rows; ++row) {
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
}

void read_series(RunReader& reader, RunFacts& facts) {
  const std::vector<std::int64_t> steps = reader.series_steps();
  for (const Series& given : reader.series()) {
    auto& series = facts.series[given.name];
    for (std::size_t i = 0; i < std::min(given.values.size(), steps.size()); ++i) {
      // NaN: the metric was not given at this step.
      if (!std::isnan(given.values[i])) series.emplace_back(steps[i], given.values[i]);
    }
  }
  if (facts.series.count("held_out_loss") > 0 || !facts.result.is_object()) return;
  const auto held_out = facts.result.find("held_out");
  if (held_out == facts.result.end() || !held_out->is_array()) return;
  for (const Json& one : *held_out) {
    const bool right = one.is_object() && one.contains("step") && one.contains("loss") &&
                       whole_number(one["step"]) && one["loss"].is_number();
    if (right)
      facts.series["held_out_loss"].emplace_back(*whole_number(one["step"]),
                                                 one["loss"].get<double>());
  }
}

void take_parts(RunReader& reader, RunFacts& facts) {
  const std::vector<std::int64_t> traced = reader.traced_steps();
  const StepRow* nearest = nullptr;
  const auto away = [&](const StepRow& s) {
    return std::abs(s.seconds - facts.step_seconds.measured);
  };
  for (const StepRow& step : facts.steps) {
    if (std::find(traced.begin(), traced.end(), step.step) == traced.end()) continue;
    if (nearest == nullptr || away(step) < away(*nearest)) nearest = &step;
  }
  if (nearest != nullptr) facts.parts = read_step_parts(reader, *nearest);
}

}  // namespace

RunSpeed speed_of(const std::vector<StepRow>& steps, const RunTiming& timing) {
  std::vector<double> seconds, tokens, shares;  // shares: MFU for each token a second
  for (std::size_t i = warm_up(steps.size()); i < steps.size(); ++i) {
    seconds.push_back(steps[i].seconds);
    tokens.push_back(static_cast<double>(steps[i].tokens));
    shares.push_back(steps[i].mfu / steps[i].tokens_per_second);
  }
  RunSpeed speed;
  speed.step_seconds = timing.seconds > 0 ? timing.seconds : median(seconds);
  speed.tokens_per_second = median(tokens) / speed.step_seconds;
  speed.mfu = speed.tokens_per_second * median(shares);
  return speed;
}

RunFacts read_run_facts(const std::filesystem::path& path, bool actions) {
  RunReader reader(path);
  RunFacts facts;
  facts.head = reader.head();
  facts.experiment = reader.experiment();
  facts.predicted_result = reader.predicted();
  facts.result = reader.result();
  read_steps(reader, facts);
  read_memory(reader, facts);
  read_bytes(reader, facts);
  read_series(reader, facts);
  take_parts(reader, facts);
  facts.account = read_account(reader);
  facts.predicted = reader.predicted_actions();
  for (const ActionRow& action : facts.predicted) {
    if (!(facts.step_seconds.predicted >= action.end)) facts.step_seconds.predicted = action.end;
  }
  if (!actions) facts.predicted.clear();
  if (actions && facts.median_step >= 0) facts.actions = reader.actions(facts.median_step);
  return facts;
}

}  // namespace mw
