// Makes the page of runs: reads and groups the runs, and leaves out or thins data that do not fit.
#include "report/runs_page.h"

#include <fmt/format.h>
#include <charconv>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "common/files.h"
#include "common/run_timing.h"
#include "draw/page.h"
#include "draw/timeline.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/options.h"
#include "record/cells.h"
#include "record/groups.h"

namespace mw {

namespace {

// The most groups, cells, points, … on a page, times `share` (at most 1). The page says what was
// left out.
struct Limits {
  explicit Limits(double share)
      : groups(part(1500, share)),
        cells(part(2500, share)),
        detailed(part(1000, share)),
        points(part(30000, share)),
        bars(part(16000, share)),
        reason(part(2000, share)) {}
  static std::size_t part(double whole, double share) {
    return static_cast<std::size_t>(std::max(1.0, whole * share));
  }
  std::size_t groups, cells, detailed, points, bars, reason;
};
constexpr std::size_t most_of_curve = 400, most_curves = 2000;
constexpr std::size_t most_timelines = 16, most_series = 8;
constexpr std::size_t most_text = 300;      // most characters of a name or value
constexpr std::size_t most_sentence = 500;  // most characters of a sentence

Json spread_json(const MeanAndDeviation& spread) {
  if (spread.n == 0) return {};
  return Json::array({page_number(spread.mean), page_number(spread.deviation), spread.n});
}

Json spreads_json(const std::map<std::string, MeanAndDeviation>& spreads) {
  Json json = Json::object();
  for (const auto& [name, spread] : spreads)
    json[page_text(name, most_text)] = page_number(spread.mean);
  return json;
}

Json values_json(const std::vector<std::pair<std::string, std::string>>& values) {
  Json json = Json::object();
  for (const auto& [key, value] : values)
    json[page_text(key, most_text)] = page_text(value, most_text);
  return json;
}

Json pairs_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json json = Json::array();
  for (const auto& [key, value] : pairs)
    json.push_back({page_text(key, most_text), page_text(value)});
  return json;
}

Json pair_json(const MeasuredPair& pair) {
  return Json::array({page_number(pair.measured), page_number(pair.predicted)});
}

// The groups and cells that are shown on the page.
struct ShownColumns {
  std::vector<std::size_t> groups, cells;  // indices of the shown groups and cells
  std::vector<int> group_at, cell_at;      // place on the page of each group and cell; -1: none
  Json notes = Json::array();
};

bool ended_well(const ReportCell& cell) {
  return cell.status == "done" || cell.status == "predicted";
}

// Chooses the fastest groups and the baselines, all cells that did not end well, and the cells of
// these groups, as far as there is room.
ShownColumns choose(const ReportRuns& runs, const ReportGroups& found, const Limits& limits) {
  ShownColumns shown;
  shown.group_at.assign(found.groups.size(), -1);
  shown.cell_at.assign(runs.cells.size(), -1);
  std::vector<std::size_t> order(found.groups.size());
  std::iota(order.begin(), order.end(), 0);
  if (order.size() > limits.groups) {
    std::set<int> first{found.fastest};
    for (const ReportGroup& g : found.groups) first.insert(g.baseline);
    const auto rank = [&](std::size_t g) {
      const double speed = found.groups[g].speed();
      return first.count(static_cast<int>(g)) > 0 ? HUGE_VAL : std::isfinite(speed) ? speed : -1;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return rank(a) > rank(b); });
    order.resize(limits.groups);
    std::sort(order.begin(), order.end());
    shown.notes.push_back(fmt::format(
        "{} of {} mixes are on this page: those with the most tokens/s. The files have all.",
        limits.groups, found.groups.size()));
  }
  for (const std::size_t g : order) {
    shown.group_at[g] = static_cast<int>(shown.groups.size());
    shown.groups.push_back(g);
  }
  const auto take = [&](bool well) {
    for (std::size_t c = 0; c < runs.cells.size() && shown.cells.size() < limits.cells; ++c) {
      const bool of_shown = shown.group_at[static_cast<std::size_t>(found.of_cell[c])] >= 0;
      if (ended_well(runs.cells[c]) != well || (well && !of_shown)) continue;
      shown.cells.push_back(c);
    }
  };
  take(false);
  take(true);
  std::sort(shown.cells.begin(), shown.cells.end());
  for (std::size_t at = 0; at < shown.cells.size(); ++at)
    shown.cell_at[shown.cells[at]] = static_cast<int>(at);
  if (shown.cells.size() < runs.cells.size()) {
    shown.notes.push_back(fmt::format("{} of {} cells are on this page by themselves.",
                                      shown.cells.size(), runs.cells.size()));
  }
  return shown;
}

Json group_json(const ReportGroup& g, const ShownColumns& shown, bool detailed) {
  Json json = {{"name", page_text(g.name, most_text)},
               {"values", values_json(g.values)},
               {"verdict", name_of(g.verdict)},
               {"n", g.cells.size()}};
  Json& m = json["m"] = Json::object();
  const auto put = [&m](const char* name, const MeanAndDeviation& spread) {
    if (spread.n > 0) m[name] = spread_json(spread);
  };
  put("tokens", g.tokens_per_second);
  put("step", g.step_seconds);
  put("peak", g.peak);
  put("mfu", g.mfu);
  put("bubble", g.bubble);
  put("loss", g.loss);
  put("held_out", g.held_out);
  put("p_tokens", g.predicted_tokens);
  put("p_step", g.predicted_step);
  put("p_peak", g.predicted_peak);
  if (g.baseline >= 0) json["baseline"] = shown.group_at[static_cast<std::size_t>(g.baseline)];
  if (std::isfinite(g.delta)) json["delta"] = page_number(g.delta);
  if (g.on_edge) json["edge"] = true;
  if (g.fastest) json["fastest"] = true;
  if (g.contends) json["contends"] = true;
  if (g.interval.known()) json["half"] = page_number(g.half());  // null: there are too few runs
  if (std::isfinite(g.others)) json["others"] = page_number(g.others);
  if (g.disturbed > 0) json["disturbed"] = g.disturbed;
  if (g.unknown > 0) json["unknown"] = g.unknown;
  json["ran"] = g.ran;
  if (!g.parting.empty()) json["parting"] = page_text(g.parting, most_sentence);
  if (!detailed) return json;
  json["memory"] = spreads_json(g.memory);
  json["bytes"] = spreads_json(g.bytes);
  json["p_memory"] = spreads_json(g.predicted_memory);
  json["p_bytes"] = spreads_json(g.predicted_bytes);
  return json;
}

Json parts_json(const StepParts& parts) {
  Json json = Json::object();
  for (const auto& [what, seconds] : parts) json[what] = page_number(seconds);
  return json;
}

// Adds how a traced step of the group spent its time, if one was traced.
void add_parts(Json& json, const ReportGroup& group, const std::vector<ReportCell>& cells) {
  const ReportCell* cell = cell_with_parts(group, cells);
  if (cell == nullptr || cell->parts.empty()) return;
  json["parts"] = parts_json(mean_parts(cell->parts));
  if (!cell->predicted_parts.empty()) json["p_parts"] = parts_json(cell->predicted_parts);
}

// Adds the account of a step of the group's first run with an account, and the machine's limit.
void add_account(Json& json, Json& names, const ReportGroup& group,
                 const std::vector<ReportCell>& cells) {
  const auto found = std::find_if(group.cells.begin(), group.cells.end(), [&](std::size_t c) {
    return cells[c].account && cells[c].measured();
  });
  if (found == group.cells.end()) return;
  const Account& account = *cells[*found].account;
  for (const AccountLine& line : account.parts) {
    const std::string name = account_part_text(line.part);
    json["account"][name] = page_number(line.seconds);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  json["limit"] = {{account_part_text("products"), page_number(account.products)},
                   {account_part_text("memory"), page_number(account.limit - account.products)}};
}

Json cell_json(const ReportCell& cell, int group, const Limits& limits) {
  Json json = {{"name", page_text(cell.name, most_text)},
               {"status", page_text(cell.status.empty() ? "predicted" : cell.status, 40)},
               {"group", group}};
  const auto put = [&json](const char* name, double value) {
    if (std::isfinite(value)) json[name] = page_number(value);
  };
  if (!cell.reason.empty()) json["reason"] = page_text(cell.reason, limits.reason);
  if (!cell.seed.empty()) json["seed"] = page_text(cell.seed, 40);
  if (!cell.hash.empty()) json["hash"] = page_text(cell.hash, 40);
  json["file"] = page_text(cell.file, most_text);
  if (cell.ranks > 0) json["ranks"] = cell.ranks;
  put("seconds", cell.seconds);
  if (!cell.measured()) return json;
  json["steps"] = cell.steps;
  put("loss", cell.loss);
  put("held_out", cell.held_out);
  put("tokens", cell.tokens_per_second.measured);
  json["step"] = pair_json(cell.step_seconds);
  json["peak"] = pair_json(cell.peak);
  double bytes = 0, predicted = 0;
  for (const auto& [axis, pair] : cell.bytes) {
    bytes += pair.measured;
    predicted += pair.predicted;
  }
  json["sent"] = pair_json({bytes, predicted});
  return json;
}

Json curve_json(const Curve& curve, int cell) {
  Json steps = Json::array(), values = Json::array();
  for (const auto& [step, value] : curve) {
    steps.push_back(step);
    values.push_back(page_number(value));
  }
  return {{"cell", cell}, {"steps", std::move(steps)}, {"values", std::move(values)}};
}

// The curves of one quantity, for all shown cells, thinned to `points` in all.
Json curves_json(const std::vector<std::pair<int, const Curve*>>& curves, std::size_t points,
                 const std::string& what, Json& notes) {
  Json all = Json::array();
  if (curves.empty()) return all;
  const std::size_t count = std::min(curves.size(), most_curves);
  const std::size_t most = std::clamp<std::size_t>(points / count, 20, most_of_curve);
  std::size_t longest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    longest = std::max(longest, curves[i].second->size());
    all.push_back(curve_json(thinned(*curves[i].second, most), curves[i].first));
  }
  if (longest > most) {
    notes.push_back(fmt::format(
        "{}: curves of more than {} steps are drawn with {} points at most: the first, the last, "
        "and the lowest and highest of each stretch. The run files have every step (up to {}).",
        what, most, most, longest));
  }
  if (curves.size() > count)
    notes.push_back(fmt::format("{}: curves of {} of {} cells.", what, count, curves.size()));
  return all;
}

void add_curves(Json& data, const ReportRuns& runs, const ReportGroups& found,
                const ShownColumns& shown, const Limits& limits) {
  std::vector<std::pair<int, const Curve*>> losses;
  std::map<std::string, std::vector<std::pair<int, const Curve*>>> series;
  for (const std::size_t c : shown.cells) {
    const ReportCell& cell = runs.cells[c];
    if (shown.group_at[static_cast<std::size_t>(found.of_cell[c])] < 0) continue;
    if (!cell.losses.empty()) losses.emplace_back(shown.cell_at[c], &cell.losses);
    for (const auto& [name, curve] : cell.series)
      if (!curve.empty()) series[name].emplace_back(shown.cell_at[c], &curve);
  }
  data["losses"] = curves_json(losses, limits.points, "Loss", data["notes"]);
  data["series"] = Json::array();
  for (const auto& [name, curves] : series) {
    if (data["series"].size() == most_series) {
      data["notes"].push_back(
          fmt::format("{} of {} metrics of /series are drawn.", most_series, series.size()));
      break;
    }
    const std::string shown_name = page_text(name, 80);
    data["series"].push_back(
        {{"name", shown_name},
         {"curves", curves_json(curves, limits.points / (2 * std::min(series.size(), most_series)),
                                shown_name, data["notes"])}});
  }
}

// Adds the timeline of each group's first cell that was done, the fastest groups first.
void add_timelines(Json& data, const ReportRuns& runs, const ReportGroups& found,
                   const ShownColumns& shown, const Limits& limits) {
  std::vector<std::size_t> order = shown.groups;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const double x = found.groups[a].speed(), y = found.groups[b].speed();
    return (std::isfinite(x) ? x : -1) > (std::isfinite(y) ? y : -1);
  });
  data["timelines"] = Json::array();
  std::size_t had = 0, bars = 0;
  const auto bars_of = [](const Json& line) {
    return line.is_object() ? line["bars"].size() : std::size_t{0};
  };
  for (const std::size_t g : order) {
    for (const std::size_t c : found.groups[g].cells) {
      const ReportCell& cell = runs.cells[c];
      if (!cell.measured() || shown.cell_at[c] < 0) continue;
      ++had;
      if (data["timelines"].size() == most_timelines || bars > limits.bars) break;
      Json line = timeline_of_run(cell.file);
      if (line.is_null()) break;
      bars += bars_of(line["measured"]) + bars_of(line["simulated"]);
      line["cell"] = shown.cell_at[c];
      data["timelines"].push_back(std::move(line));
      break;
    }
  }
  if (had > data["timelines"].size()) {
    data["notes"].push_back(fmt::format(
        "This page has the timelines of the {} fastest mixes of {}. meshwright trace draws the "
        "timeline of any run file.",
        data["timelines"].size(), had));
  }
}

// The text of a number of bytes that is given as digits.
std::string bytes_of(const std::string& digits) {
  double bytes = 0;
  const char* const end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, bytes);
  return read.ec == std::errc() && read.ptr == end ? format_bytes(bytes) : digits;
}

// A machine, the number of its cells, and all plugins that these cells used.
struct MachineKind {
  std::vector<std::pair<std::string, std::string>> facts;
  std::map<std::string, std::set<std::string>> plugins;  // the versions of each plugin
  int cells = 0;
};

Json machines_json(const ReportRuns& runs) {
  std::vector<MachineKind> kinds;
  for (const ReportCell& cell : runs.cells) {
    if (cell.machine.empty()) continue;
    MachineKind own;
    for (const auto& [key, value] : cell.machine) {
      if (key.starts_with("plugins.")) {
        own.plugins[key].insert(value);
      } else {
        own.facts.emplace_back(key, key == "memory" ? bytes_of(value) : value);
      }
    }
    auto found = std::find_if(kinds.begin(), kinds.end(),
                              [&](const MachineKind& kind) { return kind.facts == own.facts; });
    if (found == kinds.end()) {
      if (kinds.size() >= 20) continue;
      found = kinds.insert(kinds.end(), MachineKind{own.facts, {}, 0});
    }
    ++found->cells;
    for (const auto& [key, versions] : own.plugins)
      found->plugins[key].insert(versions.begin(), versions.end());
  }
  Json json = Json::array();
  for (MachineKind& kind : kinds) {
    for (const auto& [key, versions] : kind.plugins)
      kind.facts.emplace_back(key, join({versions.begin(), versions.end()}));
    json.push_back({{"facts", pairs_json(kind.facts)}, {"cells", kind.cells}});
  }
  return json;
}

Json counts_json(const ReportRuns& runs) {
  std::map<std::string, int> counts;
  for (const ReportCell& cell : runs.cells)
    ++counts[cell.status.empty() ? "predicted" : cell.status];
  Json json = Json::object();
  for (const auto& [status, count] : counts) json[page_text(status, 40)] = count;
  return json;
}

// The data of the page. `share`: factor of all limits, less than 1 if the page would be too large.
Json runs_data(const ReportRuns& runs, const ReportGroups& found, const std::string& title,
               double share) {
  const Limits limits(share);
  const ShownColumns shown = choose(runs, found, limits);
  Json data = page_data("runs", title);
  data["headline"] = found.headline;
  data["notes"] = shown.notes;
  data["asked"] = pairs_json(runs.asked);
  int beside = 0;
  for (const ReportCell& cell : runs.cells) beside = std::max(beside, cell.beside);
  if (beside > 0) {
    data["notes"].push_back(
        fmt::format("Up to {} cells ran side by side: they shared this machine's cores, and their "
                    "times are those of cells that do.",
                    beside + 1));
  }
  const bool experts =
      std::any_of(runs.cells.begin(), runs.cells.end(), [](const ReportCell& cell) {
        return cell.measured() &&
               std::any_of(cell.work.begin(), cell.work.end(),
                           [](const auto& part) { return part.first == "model.experts"; });
      });
  if (experts) {
    data["notes"].push_back(
        "Predictions about experts assume that all experts are chosen equally often, or the "
        "imbalance of their plan; the summary of a run says the measured one.");
  }
  data["axes"] = Json::array();
  for (const std::string& axis : runs.axes) data["axes"].push_back(page_text(axis, most_text));
  data["checked"] = !runs.same_loss_as.empty();
  data["predicted"] = found.predicted;
  data["kinds"] = found.races.size();
  data["fastest"] =
      found.fastest < 0 ? -1 : shown.group_at[static_cast<std::size_t>(found.fastest)];
  data["all_cells"] = runs.cells.size();
  data["counts"] = counts_json(runs);
  data["groups"] = Json::array();
  data["account_parts"] = Json::array();
  for (const std::size_t g : shown.groups) {
    const bool detailed = data["groups"].size() < limits.detailed;
    data["groups"].push_back(group_json(found.groups[g], shown, detailed));
    if (!detailed) continue;
    add_parts(data["groups"].back(), found.groups[g], runs.cells);
    add_account(data["groups"].back(), data["account_parts"], found.groups[g], runs.cells);
  }
  if (shown.groups.size() > limits.detailed) {
    data["notes"].push_back(fmt::format(
        "Memory by category, bytes by axis and steps by parts are here of the first {} mixes.",
        limits.detailed));
  }
  data["cells"] = Json::array();
  for (const std::size_t c : shown.cells) {
    data["cells"].push_back(cell_json(
        runs.cells[c], shown.group_at[static_cast<std::size_t>(found.of_cell[c])], limits));
  }
  add_curves(data, runs, found, shown, limits);
  add_timelines(data, runs, found, shown, limits);
  data["machines"] = machines_json(runs);
  return data;
}

constexpr std::size_t most_bytes = 3'000'000;  // largest size of a page

std::string title_of(const ReportInput& input, const ReportRuns& runs) {
  if (!input.title.empty()) return input.title;
  if (!runs.name.empty()) return runs.name;
  if (runs.cells.size() == 1) return runs.cells.front().name;
  return fmt::format("{} in {}", plural(static_cast<std::int64_t>(runs.cells.size()), "run"),
                     input.paths.front().string());
}

}  // namespace

Report make_report(const ReportInput& input) {
  ReportRuns runs = find_report_runs(input.paths, input.of_run);
  if (!input.baseline.empty()) runs.baseline = input.baseline;
  const ReportGroups found = group_cells(runs);
  if (!input.baseline.empty() && std::all_of(found.groups.begin(), found.groups.end(),
                                             [](const ReportGroup& g) { return g.baseline < 0; })) {
    std::vector<std::string> names;
    for (const ReportGroup& g : found.groups) names.push_back(g.name);
    throw Error(Stage::options, "usage.value", "",
                fmt::format("--baseline {}: no mix or cell is called that", input.baseline),
                nearest_or_all(input.baseline, names));
  }
  const std::string title = page_text(title_of(input, runs), 120);
  Report report;
  Json data;
  for (double share = 1; report.html.empty() || report.html.size() >= most_bytes; share /= 2) {
    data = runs_data(runs, found, title, share);
    if (!input.watch.empty()) data["watch"] = input.watch;
    report.html = html_page(title, data);
    if (share < 1e-3) break;
  }
  report.summary = {{"cells", runs.cells.size()}, {"status", data["counts"]}};
  report.summary.update(found.answer_json(/*numbers=*/true));
  report.summary["text"] = found.headline;
  return report;
}

}  // namespace mw
