// Makes lines of plans: what each is called, in which keys it is other than the first, and what is
// predicted of it.
#include "app/plan_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "app/progress.h"
#include "meshwright/engine/json_text.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "record/run_result.h"

namespace mw {
namespace {

constexpr std::size_t most_keys = 3;

// The keys of an experiment by their dotted names. Its plan is not among them: a line has the mix.
std::map<std::string, Json> keys_of(const Json& row) {
  std::map<std::string, Json> keys;
  for (const auto& [key, value] : leaves(row.value("experiment", Json::object()))) {
    const bool told = key == "name" || key == "log" || key == "overwrite" ||
                      key.starts_with("plan[") || key.starts_with("plan.");
    if (!told) keys[key] = value;
  }
  return keys;
}

// "batch = 32, model.layers = 4": where the experiment is not that of the first row.
std::string differences(const Json& row, const Json& first) {
  const std::map<std::string, Json> own = keys_of(row), before = keys_of(first);
  std::vector<std::string> texts;
  for (const auto& [key, value] : own) {
    const auto same = before.find(key);
    if (same == before.end() || same->second != value)
      texts.push_back(fmt::format("{} = {}", key, describe(value)));
  }
  for (const auto& [key, value] : before)
    if (own.count(key) == 0) texts.push_back(fmt::format("{} = nil", key));
  if (texts.size() > most_keys) {
    const std::size_t more = texts.size() - most_keys;
    texts.resize(most_keys);
    texts.push_back(fmt::format("{} more", more));
  }
  return join(texts);
}

std::string predicted_step(const Json& row) {
  if (!row.contains("step_seconds")) return "";
  const double seconds = row["step_seconds"].get<double>();
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.4g} s", seconds);
}

}  // namespace

Json plan_row(const Json& result) {
  if (result.value("kind", "") != "plan" || !result.contains("peak_bytes") ||
      result.contains("program") || result.contains("placements"))
    return nullptr;
  Json row = Json::object();
  for (const char* key : {"plan_hash", "plan", "name", "step_seconds", "tokens_per_second",
                          "peak_bytes", "fits", "priced_for", "experiment"})
    if (result.contains(key) && !result[key].is_null()) row[key] = result[key];
  return row;
}

std::string plan_lines(const std::vector<Json>& rows) {
  const Json& first = rows.front();
  const auto differs = [&](const char* key) {
    return std::any_of(rows.begin(), rows.end(), [&](const Json& row) {
      return row.value(key, Json()) != first.value(key, Json());
    });
  };
  const bool machines = differs("priced_for");
  std::vector<std::string> header = {"plan", "mix", "other than the first", "step", "tokens/s",
                                     "peak", ""};
  if (machines) header.emplace_back("on");
  TextTable table(header, {3, 4, 5});
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const Json& row = rows[i];
    const std::string mix = row.value("plan", ""), name = row.value("name", mix);
    std::vector<std::string> cells = {row.value("plan_hash", ""),
                                      name == mix ? mix : fmt::format("{}: {}", name, mix),
                                      differences(row, first),
                                      predicted_step(row),
                                      row.contains("tokens_per_second")
                                          ? format_count(row["tokens_per_second"].get<double>())
                                          : "",
                                      format_bytes(row["peak_bytes"].get<double>()),
                                      row.value("fits", true) ? "" : "does not fit"};
    if (machines) cells.push_back(row.value("priced_for", ""));
    table.add(std::move(cells));
  }
  return fmt::format(
      "\n{} more, a line each; print(plan) in the script shows one whole, and meshwright plan "
      "SCRIPT --full all of them\n\n{}",
      plural(static_cast<std::int64_t>(rows.size()) - 1, "plan"), table.text("  "));
}

}  // namespace mw
