// Makes the bars of a step's timelines, measured (a row for each rank) and simulated (a row for
// each stage), and thins curves.
#include "draw/timeline.h"

#include <fmt/format.h>
#include <algorithm>

#include <cmath>
#include <map>
#include <set>

#include "draw/page.h"
#include "meshwright/error.h"
#include "record/run_facts.h"

namespace mw {
namespace {

constexpr std::size_t most_bars = 4000;  // most bars of a timeline

double rounded(double milliseconds) {
  return std::round(1e4 * milliseconds) / 1e4;
}

std::string label_of(const ActionRow& action) {
  std::string text;
  if (action.action.size() == 1 && action.microbatch >= 0)
    text = fmt::format("{}{}", action.action, action.microbatch);
  return text;
}

TimelineRows by_rank(const std::vector<ActionRow>& actions, bool ranks) {
  std::map<int, std::vector<ActionRow>> sorted;
  for (const ActionRow& action : actions) sorted[action.rank].push_back(action);
  std::map<int, int> stages;
  for (const auto& [rank, own] : sorted) ++stages[own.front().stage];
  TimelineRows rows;
  for (auto& [rank, own] : sorted) {
    const int stage = own.front().stage;
    rows.emplace_back(!ranks              ? fmt::format("stage {}", stage)
                      : stages.size() > 1 ? fmt::format("rank {}, stage {}", rank, stage)
                                          : fmt::format("rank {}", rank),
                      std::move(own));
  }
  return rows;
}

// The lane of each action of a row, so that actions that overlap in time stand one below the other.
std::vector<std::size_t> lanes_of_row(const std::vector<ActionRow>& actions) {
  std::vector<double> free;  // the time from which each lane is free
  std::vector<std::size_t> lanes;
  for (const ActionRow& action : actions) {
    std::size_t lane = 0;
    while (lane < free.size() && free[lane] > action.start + 1e-9) ++lane;
    if (lane == free.size()) free.push_back(0);
    free[lane] = action.end;
    lanes.push_back(lane);
  }
  return lanes;
}

}  // namespace

std::vector<ActionRow> action_rows(const std::vector<TimedAction>& works) {
  std::vector<ActionRow> rows;
  for (const TimedAction& a : works)
    rows.push_back({0, a.rank, a.stage, a.chunk, a.name, a.microbatch, a.start, a.end});
  return rows;
}

Json timeline_json(const TimelineRows& rows, std::size_t most_rows) {
  Json json = {{"rows", Json::array()}, {"kinds", Json::array()}, {"bars", Json::array()}};
  std::map<std::string, int> kinds;
  std::size_t bars = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto& [name, actions] = rows[r];
    if (r >= most_rows || (r > 0 && bars + actions.size() > most_bars)) {
      json["left_out"] = rows.size() - r;
      break;
    }
    const std::vector<std::size_t> lanes = lanes_of_row(actions);
    const std::size_t first = json["rows"].size();
    const std::size_t most = lanes.empty() ? 0 : *std::max_element(lanes.begin(), lanes.end());
    for (std::size_t lane = 0; lane <= most; ++lane) {
      json["rows"].push_back(
          page_text(lane == 0 ? name : fmt::format("{}, work {}", name, lane + 1), 60));
    }
    bars += actions.size();
    for (std::size_t a = 0; a < actions.size(); ++a) {
      const ActionRow& action = actions[a];
      const auto [kind, fresh] = kinds.emplace(action.action, static_cast<int>(kinds.size()));
      if (fresh) json["kinds"].push_back(page_text(action.action, 40));
      Json bar = {first + lanes[a], kind->second, label_of(action), rounded(1e3 * action.start),
                  rounded(1e3 * action.end)};
      if (action.chunk > 0) bar.push_back(action.chunk);
      json["bars"].push_back(std::move(bar));
    }
  }
  return json;
}

Json packed_timeline(const TimelineRows& rows) {
  constexpr std::size_t most_packed = 32000, most_at_once = 32;
  double end = 0;
  std::size_t longest = 1, deepest = 1;  // most actions of a row; most lanes of a row
  for (const auto& [name, actions] : rows) {
    longest = std::max(longest, actions.size());
    for (const ActionRow& action : actions) end = std::max(end, action.end);
    for (const std::size_t lane : lanes_of_row(actions)) deepest = std::max(deepest, lane + 1);
  }
  const double unit = std::max(1e-7, end / 1e7);
  Json json = {
      {"rows", Json::array()},
      {"kinds", Json::array()},
      {"packed", Json::array()},
      {"unit", 1e3 * unit},
      {"at_once", std::clamp<std::size_t>(most_bars / (longest * deepest), 1, most_at_once)}};
  std::map<std::string, int> kinds;
  std::size_t bars = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto& [name, actions] = rows[r];
    if (r > 0 && bars + actions.size() > most_packed) {
      json["left_out"] = rows.size() - r;
      break;
    }
    bars += actions.size();
    json["rows"].push_back(page_text(name, 60));
    Json packed = Json::array();
    std::int64_t last = 0;
    for (const ActionRow& action : actions) {
      const auto [kind, fresh] = kinds.emplace(action.action, static_cast<int>(kinds.size()));
      if (fresh) json["kinds"].push_back(page_text(action.action, 40));
      const std::int64_t start = std::llround(action.start / unit);
      const std::int64_t stop = std::llround(action.end / unit);
      packed.push_back(kind->second);
      packed.push_back(action.microbatch < 0 ? -1 : action.microbatch + (action.chunk << 16));
      packed.push_back(start - last);
      packed.push_back(stop - start);
      last = stop;
    }
    json["packed"].push_back(std::move(packed));
  }
  return json;
}

Json timeline_of_run(const std::string& run_file) {
  try {
    const RunFacts facts = read_run_facts(run_file, /*actions=*/true);
    if (facts.actions.empty() && facts.predicted.empty()) return {};
    Json json = {{"step", facts.median_step},
                 {"measured", nullptr},
                 {"simulated", nullptr},
                 {"seconds", page_number(facts.step_seconds.measured)}};
    if (!facts.actions.empty()) json["measured"] = timeline_json(by_rank(facts.actions, true));
    if (!facts.predicted.empty())
      json["simulated"] = timeline_json(by_rank(facts.predicted, false));
    return json;
  } catch (const std::exception&) {
    return {};
  }
}

Curve thinned(const Curve& curve, std::size_t most) {
  if (curve.size() <= most || most < 4) return curve;
  const std::size_t stretches = (most - 2) / 3;  // intervals with at most three points each
  std::set<std::size_t> kept{0, curve.size() - 1};
  for (std::size_t s = 0; s < std::max<std::size_t>(1, stretches); ++s) {
    const std::size_t inner = curve.size() - 2, parts = std::max<std::size_t>(1, stretches);
    const std::size_t begin = 1 + inner * s / parts, end = 1 + inner * (s + 1) / parts;
    std::size_t lowest = end, highest = end, broken = end;
    for (std::size_t i = begin; i < end; ++i) {
      const double value = curve[i].second;
      if (!std::isfinite(value)) {
        if (broken == end) broken = i;
        continue;
      }
      if (lowest == end || value < curve[lowest].second) lowest = i;
      if (highest == end || value > curve[highest].second) highest = i;
    }
    for (const std::size_t i : {lowest, highest, broken})
      if (i < end) kept.insert(i);
  }
  Curve out;
  for (const std::size_t i : kept) out.push_back(curve[i]);
  return out;
}

}  // namespace mw
