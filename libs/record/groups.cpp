// Groups repeats, compares each group with its baseline, and finds the fastest group and the groups
// that no other one beats in both speed and memory.
#include "record/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <set>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

// The values of a cell as text. A plan never needs its key in front.
std::string joined_values(const ReportCell& cell, bool with_keys) {
  std::vector<std::string> texts;
  for (const auto& [key, value] : cell.values)
    texts.push_back(with_keys && key != "plan" ? fmt::format("{}={}", key, value) : value);
  return join(texts);
}

// Whether cells have values of different axes, so that values without keys would be unclear.
bool axes_differ(const std::vector<ReportCell>& cells) {
  std::set<std::vector<std::string>> seen;
  for (const ReportCell& cell : cells) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : cell.values) keys.push_back(key);
    if (!keys.empty()) seen.insert(keys);
  }
  return seen.size() > 1;
}

// Whether a cell counts as right: it was compared with the cell with whose loss its sweep compares,
// it is that cell, or its sweep does not compare losses.
bool proven(const ReportCell& cell) {
  if (cell.compared) return *cell.compared;
  if (cell.held_to.empty() || cell.name == cell.held_to) return true;
  return has_value(cell.values, cell.held_to);
}

GroupVerdict verdict_of(const ReportGroup& group, const std::vector<ReportCell>& cells) {
  bool failed = false, unfinished = false, ran = false, predicted = false, unproven = false,
       left = false;
  for (const std::size_t c : group.cells) {
    const ReportCell& cell = cells[c];
    if (cell.status == "failed" || cell.status == "unreadable") {
      failed = true;
    } else if (cell.status == "done" || cell.status == "predicted") {
      (cell.measured() ? ran : predicted) = true;
      unproven = unproven || !proven(cell);
      left = left || (!cell.measured() && !cell.fits);
    } else if (cell.status != "skipped" && cell.status != "refused") {
      unfinished = true;
    }
  }
  if (failed) return GroupVerdict::failed;
  if (unfinished) return GroupVerdict::unfinished;
  if (ran) return unproven ? GroupVerdict::unproven : GroupVerdict::right;
  return predicted && !left ? GroupVerdict::predicted : GroupVerdict::left_out;
}

// Sets the numbers that depend on times, over the runs that counted_runs() accepts.
void take_speeds(ReportGroup& group, const std::vector<ReportCell>& cells) {
  std::vector<const ReportCell*> done;
  std::vector<RunTiming> timings;
  for (const std::size_t c : group.cells) {
    if (!cells[c].done()) continue;
    done.push_back(&cells[c]);
    timings.push_back(cells[c].timing);
  }
  const std::vector<bool> counted = counted_runs(timings);
  std::vector<double> tokens, steps, mfu, bubble;
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (!counted[i]) continue;
    tokens.push_back(done[i]->tokens_per_second.measured);
    steps.push_back(done[i]->step_seconds.measured);
    mfu.push_back(done[i]->mfu);
    bubble.push_back(done[i]->bubble);
  }
  group.tokens_per_second = mean_and_deviation(tokens);
  group.step_seconds = mean_and_deviation(steps);
  group.mfu = mean_and_deviation(mfu);
  group.bubble = mean_and_deviation(bubble);
}

void take_spreads(ReportGroup& group, const std::vector<ReportCell>& cells) {
  const auto over = [&](const std::function<double(const ReportCell&)>& value, bool measured) {
    std::vector<double> values;
    for (const std::size_t c : group.cells)
      if (!measured || cells[c].done()) values.push_back(value(cells[c]));
    return mean_and_deviation(values);
  };
  using Cell = ReportCell;
  take_speeds(group, cells);
  group.peak = over([](const Cell& c) { return c.peak.measured; }, true);
  group.loss = over([](const Cell& c) { return c.loss; }, true);
  group.held_out = over([](const Cell& c) { return c.held_out; }, true);
  group.predicted_tokens = over([](const Cell& c) { return c.tokens_per_second.predicted; }, false);
  group.predicted_step = over([](const Cell& c) { return c.step_seconds.predicted; }, false);
  group.predicted_peak = over([](const Cell& c) { return c.peak.predicted; }, false);
  group.others = over([](const Cell& c) { return c.timing.use.others; }, true).mean;
  double most = -1;
  for (const std::size_t c : group.cells) {
    const Cell& cell = cells[c];
    group.step_error = std::max(group.step_error, cell.step_error);
    group.ran += cell.done() ? 1 : 0;
    group.disturbed += cell.done() && cell.timing.disturbed ? 1 : 0;
    group.unknown += cell.done() && std::isnan(cell.timing.use.others) ? 1 : 0;
    if (!cell.done() || !(std::abs(cell.parting.share) > most)) continue;
    most = std::abs(cell.parting.share);
    group.parting = cell.parting.text;
  }
  const auto parts = [&](std::map<std::string, MeasuredPair> Cell::*of, bool measured) {
    std::map<std::string, MeanAndDeviation> all;
    for (const std::size_t c : group.cells)
      for (const auto& [name, pair] : cells[c].*of) all[name];
    for (auto& [name, spread] : all) {
      spread = over(
          [&, &name = name](const Cell& c) {
            const auto found = (c.*of).find(name);
            if (found == (c.*of).end()) return not_known;
            return measured ? found->second.measured : found->second.predicted;
          },
          measured);
    }
    std::erase_if(all, [](const auto& one) { return one.second.n == 0; });
    return all;
  };
  group.memory = parts(&Cell::memory, true);
  group.bytes = parts(&Cell::bytes, true);
  group.predicted_memory = parts(&Cell::memory, false);
  group.predicted_bytes = parts(&Cell::bytes, false);
}

// Whether `name` is the group's name, one of its values, or the name, mix or hash of one of its
// cells.
bool is_called(const ReportGroup& group, const std::string& name,
               const std::vector<ReportCell>& cells) {
  return group.name == name || has_value(group.values, name) ||
         std::any_of(group.cells.begin(), group.cells.end(), [&](std::size_t c) {
           return cells[c].name == name || cells[c].mix == name || cells[c].hash == name;
         });
}

// The group of the same work that `baseline` names and whose values are nearest; groups of the same
// sweep come first. -1: there is none.
int baseline_of(const ReportGroup& group, const std::vector<ReportGroup>& groups,
                const std::string& baseline, const std::vector<ReportCell>& cells) {
  for (const bool same_sweep : {true, false}) {
    std::vector<const AxisValues*> candidates;
    for (const ReportGroup& other : groups) {
      const bool fits = other.work == group.work && is_called(other, baseline, cells) &&
                        (other.sweep == group.sweep || !same_sweep);
      candidates.push_back(fits ? &other.values : nullptr);
    }
    const int found = nearest_values(group.values, candidates);
    if (found >= 0) return found;
  }
  return -1;
}

void find_edge(std::vector<ReportGroup>& groups) {
  std::vector<ReportGroup*> order;
  for (ReportGroup& g : groups) {
    const bool counted = g.verdict == GroupVerdict::right || g.verdict == GroupVerdict::predicted;
    if (counted && std::isfinite(g.speed()) && std::isfinite(g.memory_needed()))
      order.push_back(&g);
  }
  std::stable_sort(order.begin(), order.end(), [](const ReportGroup* a, const ReportGroup* b) {
    return std::pair(a->memory_needed(), -a->speed()) < std::pair(b->memory_needed(), -b->speed());
  });
  std::map<std::pair<AxisValues, GroupVerdict>, double> best;
  for (ReportGroup* g : order) {
    double& most = best[{g->work, g->verdict}];
    if (g->speed() <= most) continue;
    g->on_edge = true;
    most = g->speed();
  }
}

// Writes a number with commas: 12,345; 1.23.
std::string grouped(double value) {
  if (std::abs(value) < 1000) return fmt::format("{:.4g}", value);
  std::string digits = fmt::format("{:.0f}", value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  return digits;
}

// Makes sentences of "undecided: a, b …\ncannot be: …".
std::string sentence(std::string text) {
  for (std::size_t at = 0;; at += 2) {
    text[at] = static_cast<char>(std::toupper(text[at]));
    if ((at = text.find('\n', at)) == std::string::npos) return text + ".";
    text.replace(at, 1, ". ");
  }
}

std::string speed_with_runs(const ReportGroup& group) {
  const std::string text = speed_text(group, grouped, " tokens/s"),
                    runs = plural(group.tokens_per_second.n, "run");
  if (group.only_predicted() && group.step_error > 0)
    return fmt::format("{} (predictions of this machine err by {:.0f} % on average)", text,
                       std::max(1.0, 100 * group.step_error));
  if (!group.interval.known()) return text;
  return std::isnan(group.half()) ? fmt::format("{} ({}: too few for a 95 % interval)", text, runs)
                                  : fmt::format("{} (95 %, of {})", text, runs);
}

// The only mix among these that is right (or predicted, if nothing was run); null: none, or
// several.
const ReportGroup* alone_among(const ReportGroups& found, const std::vector<int>& groups) {
  const ReportGroup* alone = nullptr;
  for (const int g : groups) {
    const ReportGroup& group = found.groups[static_cast<std::size_t>(g)];
    if (group.verdict != (found.predicted ? GroupVerdict::predicted : GroupVerdict::right))
      continue;
    if (alone != nullptr) return nullptr;
    alone = &group;
  }
  return alone;
}

// The headline if there are several kinds of work, each with a fastest mix of its own; it names
// only the first few.
std::string headline_of_kinds(const ReportGroups& found) {
  constexpr std::size_t most = 8;
  std::string text = fmt::format(
      "There are {} kinds of work (model, sequence, batch or data differ), and tokens/s of one say "
      "nothing of another.",
      found.races.size());
  std::size_t shown = 0;
  for (const WorkRace& race : found.races) {
    if (race.groups.size() < 2) continue;
    if (++shown > most) break;
    const std::string of = race.name.empty() ? "Of one kind: " : race.name + ": ";
    if (race.fastest >= 0) {
      const ReportGroup& best = found.groups[static_cast<std::size_t>(race.fastest)];
      text += fmt::format(" {}{} {}, {}{}.", of, found.predicted ? "predicted fastest" : "fastest",
                          best.name, speed_with_runs(best),
                          race.by_cpu ? " (by CPU seconds, as other programs had the cores)" : "");
    } else if (!race.verdict.empty()) {
      text += " " + of + race.verdict + ".";
    } else if (const ReportGroup* alone = alone_among(found, race.groups)) {
      text += fmt::format(" {}only {} has all its cells done and right.", of, alone->name);
    } else {
      text += fmt::format(" {}no mix has all its cells done and right.", of);
    }
  }
  return shown > most ? text + " The table marks those of the others." : text;
}

std::string headline_of(const ReportRuns& runs, const ReportGroups& found) {
  if (found.races.size() > 1) return headline_of_kinds(found);
  const bool checked = !runs.same_loss_as.empty();
  const std::string unchecked = checked ? "" : " No losses were compared (same_loss_as).";
  const WorkRace race = found.races.empty() ? WorkRace{} : found.races.front();
  if (race.fastest < 0 && !race.verdict.empty()) return sentence(race.verdict) + unchecked;
  const ReportGroup* alone = alone_among(found, race.groups);
  if (race.fastest < 0 && alone == nullptr) {
    const bool unproven =
        std::any_of(found.groups.begin(), found.groups.end(),
                    [](const ReportGroup& g) { return g.verdict == GroupVerdict::unproven; });
    if (unproven)
      return "No mix is known to be right: the losses of those that ran were not compared.";
    if (runs.cells.empty()) return "There is no cell.";
    const auto done = std::count_if(runs.cells.begin(), runs.cells.end(),
                                    [](const ReportCell& cell) { return cell.done(); });
    return fmt::format(
        "No fastest mix to name yet: none has all its cells done and right ({} of {} cells are "
        "done).",
        done, runs.cells.size());
  }
  const ReportGroup& best =
      race.fastest < 0 ? *alone : found.groups[static_cast<std::size_t>(race.fastest)];
  std::string text = found.groups.size() == 1 ? "The only mix: "
                     : race.fastest < 0       ? found.predicted ? "The only mix that fits: "
                                                                : "The only mix that is done and right: "
                     : found.predicted        ? "Predicted fastest: "
                     : checked                ? "Fastest correct mix: "
                                              : "Fastest mix: ";
  text += best.name + ", " + speed_with_runs(best);
  if (best.baseline >= 0 && &found.groups[static_cast<std::size_t>(best.baseline)] != &best &&
      std::isfinite(best.delta)) {
    const ReportGroup& base = found.groups[static_cast<std::size_t>(best.baseline)];
    text += fmt::format(", {:+.1f} % against {}", 100 * best.delta, base.name);
  }
  text += ".";
  if (found.predicted) return text + " Nothing was run.";
  if (race.by_cpu) text += " CPU seconds say so, as other programs had the cores.";
  if (const std::size_t more = race.verdict.find('\n'); more != std::string::npos)
    text += " " + sentence(race.verdict.substr(more + 1));
  if (found.groups.size() > 1) text += unchecked;
  if (best.tokens_per_second.n == 1 && found.groups.size() > 1) {
    text += " It ran once: its spread is not known, and differences of a few percent may be noise.";
  }
  return text;
}

// The name of a group. In a sweep, it is the label of its cells. Otherwise it is the runs' common
// name, or their values if they have no common name.
std::string name_of_mix(const std::vector<std::size_t>& group, const ReportRuns& runs,
                        bool with_keys) {
  const ReportCell& first = runs.cells[group.front()];
  std::vector<std::string> names;
  for (const std::size_t c : group) {
    const ReportCell& cell = runs.cells[c];
    const std::string& own = cell.sweep.empty() ? cell.name : cell.label;
    if (std::find(names.begin(), names.end(), own) == names.end()) names.push_back(own);
  }
  if (!first.sweep.empty()) return join(names, " | ");
  const std::string values = joined_values(first, with_keys);
  const bool own = !first.name.empty() && runs.cells.size() > 1 && names.size() == 1;
  return own || values.empty() ? first.name : values;
}

// Makes the names of groups unique, in up to three steps, each only for names that are still equal:
// adds the sweep's name, or the values of runs without a sweep; then uses the name of a sweep's
// first cell; then adds the file.
void tell_apart(std::vector<ReportGroup>& groups, const ReportRuns& runs, bool with_keys) {
  const auto lengthen = [&](auto&& longer) {
    std::map<std::string, int> names;
    for (const ReportGroup& g : groups) ++names[g.name];
    for (ReportGroup& g : groups)
      if (names[g.name] > 1) g.name = longer(g, runs.cells[g.cells.front()]);
  };
  const bool sweeps = std::any_of(groups.begin(), groups.end(), [&](const ReportGroup& g) {
    return g.sweep != groups.front().sweep;
  });
  lengthen([&](const ReportGroup& g, const ReportCell& cell) {
    const std::string values = joined_values(cell, with_keys);
    if (!g.sweep.empty()) return sweeps ? g.sweep + ": " + g.name : g.name;
    return values == g.name || values.empty() ? g.name : g.name + " (" + values + ")";
  });
  lengthen([&](const ReportGroup& g, const ReportCell& cell) {
    return g.sweep.empty() ? g.name : (sweeps ? g.sweep + ": " : "") + cell.name;
  });
  lengthen([&](const ReportGroup& g, const ReportCell& cell) {
    return g.name + " (" + cell.file + ")";
  });
}

void put_together(ReportGroups& found, const ReportRuns& runs) {
  const bool with_keys = axes_differ(runs.cells);
  found.of_cell.resize(runs.cells.size());
  for (std::vector<std::size_t>& cells : repeats_of(runs.cells)) {
    ReportGroup& made = found.groups.emplace_back();
    made.values = runs.cells[cells.front()].values;
    made.sweep = runs.cells[cells.front()].sweep;
    made.name = made.own_name = name_of_mix(cells, runs, with_keys);
    for (const std::size_t c : cells) {
      if (made.work.empty()) made.work = runs.cells[c].work;
      found.of_cell[c] = static_cast<int>(found.groups.size()) - 1;
    }
    made.cells = std::move(cells);
  }
  tell_apart(found.groups, runs, with_keys);
}

RankedMix ranked_mix(const ReportGroup& group, const std::vector<ReportCell>& cells) {
  RankedMix mix;
  mix.values = group.values;
  mix.right = group.verdict == GroupVerdict::right;
  for (const std::size_t c : group.cells) {
    if (!cells[c].done()) continue;
    RunTiming& run = mix.runs.emplace_back(cells[c].timing);
    run.seconds = cells[c].step_seconds.measured;  // also in files of earlier versions
    mix.flops = cells[c].flops;
  }
  return mix;
}

void race_measured(WorkRace& race, ReportGroups& found, const std::vector<ReportCell>& cells) {
  std::vector<RankedMix> mixes;
  std::vector<std::string> names;
  for (const int g : race.groups) {
    mixes.push_back(ranked_mix(found.groups[static_cast<std::size_t>(g)], cells));
    names.push_back(found.groups[static_cast<std::size_t>(g)].name);
  }
  const Ranking ranking = rank_mixes(mixes);
  const auto group = [&](int mix) { return race.groups[static_cast<std::size_t>(mix)]; };
  for (std::size_t m = 0; m < mixes.size(); ++m)
    found.groups[static_cast<std::size_t>(race.groups[m])].interval = ranking.wall[m];
  race.by_cpu = ranking.by_cpu;
  race.verdict = verdict_text(ranking, names);
  for (const auto& [more, less] : ranking.impossible)
    race.impossible.emplace_back(group(more), group(less));
  if (ranking.fastest >= 0) race.fastest = group(ranking.fastest);
  if (!ranking.undecided()) return;
  for (const int mix : ranking.among) {
    race.undecided.push_back(group(mix));
    found.groups[static_cast<std::size_t>(group(mix))].contends = true;
  }
}

void race_predicted(WorkRace& race, const ReportGroups& found) {
  int racing = 0, best = -1;
  for (const int g : race.groups) {
    const ReportGroup& group = found.groups[static_cast<std::size_t>(g)];
    if (group.verdict != GroupVerdict::predicted) continue;
    ++racing;
    if (best < 0 || group.speed() > found.groups[static_cast<std::size_t>(best)].speed()) best = g;
  }
  if (racing < 2) return;  // a fastest mix needs others to be compared with
  race.fastest = best;
  const ReportGroup& fastest = found.groups[static_cast<std::size_t>(best)];
  race.verdict = fmt::format("predicted fastest: {}, {}", fastest.name, speed_with_runs(fastest));
}

void find_fastest(ReportGroups& found, const std::vector<ReportCell>& cells) {
  find_edge(found.groups);
  std::map<AxisValues, std::size_t> known;
  std::vector<const AxisValues*> values(found.groups.size());
  for (std::size_t g = 0; g < found.groups.size(); ++g) {
    const ReportGroup& group = found.groups[g];
    if (!std::isfinite(found.predicted ? group.speed() : group.tokens_per_second.mean)) continue;
    values[g] = &group.values;
    const auto [race, fresh] = known.emplace(group.work, found.races.size());
    if (fresh) found.races.emplace_back();
    found.races[race->second].groups.push_back(static_cast<int>(g));
  }
  for (WorkRace& race : found.races) {
    race.name = name_of_kind(values, race.groups);
    if (found.predicted) {
      race_predicted(race, found);
    } else {
      race_measured(race, found, cells);
    }
    if (race.fastest >= 0) found.groups[static_cast<std::size_t>(race.fastest)].fastest = true;
  }
  if (found.races.size() == 1) found.fastest = found.races.front().fastest;
}

}  // namespace

const char* name_of(GroupVerdict verdict) {
  switch (verdict) {
    case GroupVerdict::right:
      return "right";
    case GroupVerdict::unproven:
      return "not compared";
    case GroupVerdict::failed:
      return "failed";
    case GroupVerdict::unfinished:
      return "unfinished";
    case GroupVerdict::predicted:
      return "predicted";
    case GroupVerdict::left_out:
      return "left out";
  }
  return "?";
}

const ReportCell* cell_with_parts(const ReportGroup& group, const std::vector<ReportCell>& cells) {
  const ReportCell* found = nullptr;
  for (const std::size_t c : group.cells) {
    const bool better = found == nullptr || (found->parts.empty() && !cells[c].parts.empty());
    if (cells[c].measured() && better) found = &cells[c];
  }
  return found;
}

std::vector<std::vector<std::size_t>> repeats_of(const std::vector<ReportCell>& cells) {
  const auto place = [](const ReportCell& cell) {
    return cell.sweep + '\n' + joined_values(cell, /*with_keys=*/true);
  };
  std::map<std::string, std::string> planned;  // ReportCell::repeats, by sweep and values
  for (const ReportCell& cell : cells)
    if (!cell.sweep.empty() && !cell.repeats.empty()) planned.emplace(place(cell), cell.repeats);
  std::vector<std::vector<std::size_t>> groups;
  std::map<std::string, std::size_t> known;
  for (std::size_t c = 0; c < cells.size(); ++c) {
    // A cell that failed before it ran has no `repeats`; it gets that of cells with its values.
    std::string key = place(cells[c]), computes = cells[c].repeats;
    if (const auto same = planned.find(key); computes.empty() && same != planned.end())
      computes = same->second;
    if (!computes.empty()) key = cells[c].sweep + '\n' + computes;
    const auto [group, fresh] = known.emplace(key, groups.size());
    if (fresh) groups.emplace_back();
    groups[group->second].push_back(c);
  }
  return groups;
}

std::string speed_text(const ReportGroup& group, std::string (*number)(double), const char* unit) {
  const std::string text = number(group.speed()) + unit;
  if (!group.interval.known()) return text;
  return fmt::format("{} ± {}", text,
                     std::isnan(group.half()) ? "?" : number(group.speed() * group.half()));
}

std::string ReportGroups::answer() const {
  std::vector<std::string> lines;
  for (const WorkRace& race : races) {
    if (race.verdict.empty()) continue;
    lines.push_back(races.size() == 1 || race.name.empty() ? race.verdict
                                                           : race.name + ": " + race.verdict);
  }
  return join(lines, "\n");
}

Json ReportGroups::answer_json(bool numbers) const {
  const auto name = [&](int g) { return groups[static_cast<std::size_t>(g)].name; };
  const auto who = [&](int g) {
    if (g < 0) return Json();
    if (!numbers) return Json(name(g));
    const ReportGroup& best = groups[static_cast<std::size_t>(g)];
    return Json{{"name", best.name},
                {"tokens_per_second", best.speed()},
                {"half", number_or_null(best.speed() * best.half())},
                {"predicted", predicted},
                {"delta", number_or_null(best.delta)}};
  };
  const auto answer_of = [&](const WorkRace& race) {
    Json json = {{"fastest", who(race.fastest)}, {"by", nullptr}, {"undecided", Json::array()}};
    if (race.fastest >= 0 && !predicted) json["by"] = race.by_cpu ? "cpu" : "wall";
    for (const int g : race.undecided) json["undecided"].push_back(name(g));
    return json;
  };
  Json json = answer_of(races.size() == 1 ? races.front() : WorkRace{});
  json["predicted"] = predicted;
  json["impossible"] = Json::array();
  json["answer"] = answer();
  json["kinds"] = Json::array();
  for (const WorkRace& race : races) {
    for (const auto& [more, less] : race.impossible)
      json["impossible"].push_back({{"more_work", name(more)}, {"less_work", name(less)}});
    Json& kind = json["kinds"].emplace_back(answer_of(race));
    kind["name"] = race.name;
    kind["mixes"] = Json::array();
    for (const int g : race.groups) kind["mixes"].push_back(name(g));
  }
  json["speeds"] = Json::array();
  for (const ReportGroup& group : groups)
    if (group.interval.known())
      json["speeds"].push_back(
          {{"mix", group.name},
           {"tokens_per_second", group.tokens_per_second.mean},
           {"half", number_or_null(group.tokens_per_second.mean * group.half())},
           {"runs", group.tokens_per_second.n}});
  return json;
}

ReportGroups group_cells(const ReportRuns& runs) {
  ReportGroups found;
  put_together(found, runs);
  // A sweep's own table chooses its baseline in this order too.
  std::string baseline = runs.baseline.empty() ? runs.same_loss_as : runs.baseline;
  if (baseline.empty() && !runs.name.empty() && !found.groups.empty())
    baseline = found.groups.front().name;

  bool measured = false;
  for (ReportGroup& g : found.groups) {
    g.verdict = verdict_of(g, runs.cells);
    take_spreads(g, runs.cells);
    measured = measured || g.tokens_per_second.n > 0;
  }
  found.predicted = !measured;
  for (ReportGroup& g : found.groups) {
    if (!baseline.empty()) g.baseline = baseline_of(g, found.groups, baseline, runs.cells);
    if (g.baseline >= 0) {
      const ReportGroup& base = found.groups[static_cast<std::size_t>(g.baseline)];
      const bool both = (g.tokens_per_second.n > 0) == (base.tokens_per_second.n > 0);
      if (both && base.speed() > 0) g.delta = g.speed() / base.speed() - 1;
    }
  }
  find_fastest(found, runs.cells);
  found.headline = headline_of(runs, found);
  return found;
}

}  // namespace mw
