// Puts repeats together, compares each group with its baseline, and finds the fastest and the edge
// of speed against memory.
#include "report/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <set>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

// A plan's text says by itself what it is.
std::string joined_values(const ReportCell& cell, bool with_keys) {
  std::vector<std::string> texts;
  for (const auto& [key, value] : cell.values)
    texts.push_back(with_keys && key != "plan" ? fmt::format("{}={}", key, value) : value);
  return join(texts);
}

// Whether values by themselves do not say of what they are.
bool axes_differ(const std::vector<ReportCell>& cells) {
  std::set<std::vector<std::string>> seen;
  for (const ReportCell& cell : cells) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : cell.values) keys.push_back(key);
    if (!keys.empty()) seen.insert(keys);
  }
  return seen.size() > 1;
}

// Where a sweep holds losses to a cell's, that cell and those that were compared with it.
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

// Takes speeds from the runs that the group's interval is of.
void take_speeds(ReportGroup& group, const std::vector<ReportCell>& cells) {
  std::vector<const ReportCell*> done;
  std::vector<RunTiming> timings;
  for (const std::size_t c : group.cells) {
    if (!cells[c].done()) continue;
    done.push_back(&cells[c]);
    timings.push_back(cells[c].timing);
  }
  const std::vector<bool> counted = counted_runs(timings);
  std::vector<double> tokens, steps;
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (!counted[i]) continue;
    tokens.push_back(done[i]->tokens_per_second.measured);
    steps.push_back(done[i]->step_seconds.measured);
  }
  group.tokens_per_second = mean_and_deviation(tokens);
  group.step_seconds = mean_and_deviation(steps);
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
  group.mfu = over([](const Cell& c) { return c.mfu; }, true);
  group.bubble = over([](const Cell& c) { return c.bubble; }, true);
  group.loss = over([](const Cell& c) { return c.loss; }, true);
  group.held_out = over([](const Cell& c) { return c.held_out; }, true);
  group.predicted_tokens = over([](const Cell& c) { return c.tokens_per_second.predicted; }, false);
  group.predicted_step = over([](const Cell& c) { return c.step_seconds.predicted; }, false);
  group.predicted_peak = over([](const Cell& c) { return c.peak.predicted; }, false);
  group.others = over([](const Cell& c) { return c.timing.use.others; }, true).mean;
  double most = -1;
  for (const std::size_t c : group.cells) {
    const Cell& cell = cells[c];
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

// By its own name, by a value, or by the name, the mix or the hash of one of its cells.
bool is_called(const ReportGroup& group, const std::string& name,
               const std::vector<ReportCell>& cells) {
  return group.name == name || has_value(group.values, name) ||
         std::any_of(group.cells.begin(), group.cells.end(), [&](std::size_t c) {
           return cells[c].name == name || cells[c].mix == name || cells[c].hash == name;
         });
}

// The nearest group of the same work that the baseline names, those of the same sweep first.
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

void find_edge(std::vector<ReportGroup>& groups, GroupVerdict counted) {
  std::vector<ReportGroup*> order;
  for (ReportGroup& g : groups) {
    if (g.verdict == counted && std::isfinite(g.speed()) && std::isfinite(g.memory_needed()))
      order.push_back(&g);
  }
  std::stable_sort(order.begin(), order.end(), [](const ReportGroup* a, const ReportGroup* b) {
    return std::pair(a->memory_needed(), -a->speed()) < std::pair(b->memory_needed(), -b->speed());
  });
  std::map<AxisValues, double> best;
  for (ReportGroup* g : order) {
    if (g->speed() <= best[g->work]) continue;
    g->on_edge = true;
    best[g->work] = g->speed();
  }
}

// 12,345; 1.23
std::string grouped(double value) {
  if (std::abs(value) < 1000) return fmt::format("{:.4g}", value);
  std::string digits = fmt::format("{:.0f}", value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  return digits;
}

// Makes sentences of "undecided: a, b …\ncannot be: …".
std::string sentence(std::string text) {
  text[0] = static_cast<char>(std::toupper(text[0]));
  if (const std::size_t line = text.find('\n'); line != std::string::npos)
    text.replace(line, 1, ". ");
  return text + ".";
}

// The speed with half of its interval, where that is known.
std::string speed_of(const ReportGroup& group) {
  std::string text = grouped(group.speed()) + " tokens/s";
  if (group.interval.known())
    text += fmt::format(" ± {} (95 %, of {})", grouped(group.speed() * group.half()),
                        plural(group.tokens_per_second.n, "run"));
  return text;
}

// Each kind of work has a fastest of its own; many are left to the table.
std::string headline_of_kinds(const ReportGroups& found) {
  constexpr std::size_t most = 8;
  std::string text = fmt::format(
      "There are {} kinds of work (model, sequence, batch or data differ), and tokens/s of one say "
      "nothing of another.",
      found.kinds_of_work);
  std::size_t shown = 0;
  for (const WorkRace& race : found.races) {
    if (race.groups.size() < 2) continue;
    if (++shown > most) break;
    const std::string of = race.name.empty() ? "Of one kind: " : race.name + ": ";
    if (race.fastest >= 0) {
      const ReportGroup& best = found.groups[static_cast<std::size_t>(race.fastest)];
      text += fmt::format(" {}{} {}, {}{}.", of, found.predicted ? "predicted fastest" : "fastest",
                          best.name, speed_of(best),
                          race.by_cpu ? " (by CPU seconds, as other programs had the cores)" : "");
    } else if (!race.verdict.empty()) {
      text += " " + of + race.verdict + ".";
    } else {
      text += fmt::format(" {}no mix has all its cells done and right.", of);
    }
  }
  return shown > most ? text + " The table marks those of the others." : text;
}

std::string headline_of(const ReportRuns& runs, const ReportGroups& found) {
  if (found.kinds_of_work > 1) return headline_of_kinds(found);
  const std::string unchecked =
      runs.same_loss_as.empty() ? " No losses were compared (same_loss_as)." : "";
  if (found.fastest < 0 && !found.verdict.empty()) return sentence(found.verdict) + unchecked;
  if (found.fastest < 0) {
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
  const ReportGroup& best = found.groups[static_cast<std::size_t>(found.fastest)];
  const bool checked = !runs.same_loss_as.empty();
  std::string text = found.predicted            ? "Predicted fastest: "
                     : found.groups.size() == 1 ? "The only mix: "
                     : checked                  ? "Fastest correct mix: "
                                                : "Fastest mix: ";
  text += best.name + ", " + speed_of(best);
  if (best.baseline >= 0 && best.baseline != found.fastest && std::isfinite(best.delta)) {
    const ReportGroup& base = found.groups[static_cast<std::size_t>(best.baseline)];
    text += fmt::format(", {:+.1f} % against {}", 100 * best.delta, base.name);
  }
  text += ".";
  if (found.predicted) return text + " Nothing was run.";
  if (found.by_cpu) text += " CPU seconds say so, as other programs had the cores.";
  if (const std::size_t more = found.verdict.find('\n'); more != std::string::npos)
    text += " " + sentence(found.verdict.substr(more + 1));
  if (found.groups.size() > 1) text += unchecked;
  if (best.tokens_per_second.n == 1 && found.groups.size() > 1) {
    text += " It ran once: its spread is not known, and differences of a few percent may be noise.";
  }
  return text;
}

// Repeats become one group, in each sweep.
void put_together(ReportGroups& found, const ReportRuns& runs, bool with_keys) {
  std::map<std::string, std::size_t> by_key;
  std::map<std::string, std::string> repeats;  // of a sweep's cells with the same values
  for (const ReportCell& cell : runs.cells)
    if (!cell.sweep.empty() && !cell.repeats.empty())
      repeats.emplace(cell.sweep + '\n' + joined_values(cell, true), cell.repeats);
  for (std::size_t c = 0; c < runs.cells.size(); ++c) {
    const ReportCell& cell = runs.cells[c];
    // The values of a sweep say what a cell is, also where it has not run.
    const std::string values = joined_values(cell, with_keys);
    const bool sweep = !cell.sweep.empty();
    // A cell that failed before it ran belongs to its repeats.
    const std::string base = cell.sweep + '\n' + joined_values(cell, true);
    const auto known = repeats.find(base);
    const std::string own =
        cell.repeats.empty() && known != repeats.end() ? known->second : cell.repeats;
    const auto [at, fresh] =
        by_key.emplace(own.empty() ? base : cell.sweep + '\n' + own, found.groups.size());
    if (fresh) {
      ReportGroup& made = found.groups.emplace_back();
      made.values = cell.values;
      made.sweep = cell.sweep;
      made.name = values.empty() ? cell.name : values;
      if (!sweep && !cell.name.empty() && runs.cells.size() > 1) made.name = cell.name;
    } else if (!sweep && found.groups[at->second].name != cell.name && !values.empty()) {
      found.groups[at->second].name = values;  // repeats with names of their own
    }
    if (found.groups[at->second].work.empty()) found.groups[at->second].work = cell.work;
    found.groups[at->second].cells.push_back(c);
    found.of_cell.push_back(static_cast<int>(at->second));
  }
}

// Runs by themselves may share a name: then what differs, or the file, tells them apart.
void tell_apart(std::vector<ReportGroup>& groups, const ReportRuns& runs, bool with_keys) {
  std::map<std::string, int> names;
  for (const ReportGroup& g : groups) ++names[g.name];
  std::map<std::string, int> longer;
  for (ReportGroup& g : groups) {
    if (names[g.name] == 1) continue;
    const std::string values = joined_values(runs.cells[g.cells.front()], with_keys);
    if (!g.sweep.empty()) g.name = g.sweep + ": " + g.name;
    if (g.sweep.empty() && values != g.name && !values.empty()) g.name += " (" + values + ")";
    ++longer[g.name];
  }
  for (ReportGroup& g : groups)
    if (longer[g.name] > 1) g.name += " (" + runs.cells[g.cells.front()].file + ")";
}

RankedMix ranked_mix(const ReportGroup& group, const std::vector<ReportCell>& cells) {
  RankedMix mix;
  mix.values = group.values;
  mix.work = group.work;
  mix.right = group.verdict == GroupVerdict::right;
  for (const std::size_t c : group.cells) {
    if (!cells[c].done()) continue;
    RunTiming& run = mix.runs.emplace_back(cells[c].timing);
    run.seconds = 1 / cells[c].tokens_per_second.measured;  // files of earlier versions have it too
    mix.flops = cells[c].flops;
  }
  return mix;
}

// The races of measured mixes, each with its intervals and its verdict.
void race_measured(ReportGroups& found, const std::vector<ReportCell>& cells) {
  std::vector<RankedMix> mixes;
  std::vector<std::string> names;
  for (const ReportGroup& group : found.groups) {
    mixes.push_back(std::isfinite(group.speed()) ? ranked_mix(group, cells) : RankedMix{});
    names.push_back(group.name);
  }
  const RankedKinds ranked = rank_kinds(mixes);
  for (std::size_t g = 0; g < found.groups.size(); ++g) found.groups[g].interval = ranked.wall[g];
  for (const RankedKind& kind : ranked.kinds) {
    const auto group = [&](int mix) { return kind.mixes[static_cast<std::size_t>(mix)]; };
    std::vector<std::string> own;
    for (const int mix : kind.mixes) own.push_back(names[static_cast<std::size_t>(mix)]);
    WorkRace& race = found.races.emplace_back();
    race.name = kind.name;
    race.groups = kind.mixes;
    race.by_cpu = kind.ranking.by_cpu;
    race.verdict = verdict_text(kind.ranking, own);
    if (kind.ranking.fastest >= 0) race.fastest = group(kind.ranking.fastest);
    if (!kind.ranking.undecided()) continue;
    for (const int mix : kind.ranking.among)
      found.groups[static_cast<std::size_t>(group(mix))].contends = true;
  }
}

void race_predicted(ReportGroups& found) {
  std::map<AxisValues, std::size_t> known;
  std::vector<const AxisValues*> values(found.groups.size());
  for (std::size_t g = 0; g < found.groups.size(); ++g) {
    const ReportGroup& group = found.groups[g];
    if (!std::isfinite(group.speed())) continue;
    values[g] = &group.values;
    const auto [kind, fresh] = known.emplace(group.work, found.races.size());
    if (fresh) found.races.emplace_back();
    WorkRace& race = found.races[kind->second];
    race.groups.push_back(static_cast<int>(g));
    const bool quicker =
        race.fastest < 0 ||
        group.speed() > found.groups[static_cast<std::size_t>(race.fastest)].speed();
    if (group.verdict == GroupVerdict::predicted && quicker) race.fastest = static_cast<int>(g);
  }
  for (WorkRace& race : found.races) race.name = name_of_kind(values, race.groups);
}

void find_fastest(ReportGroups& found, const std::vector<ReportCell>& cells) {
  find_edge(found.groups, found.predicted ? GroupVerdict::predicted : GroupVerdict::right);
  if (found.predicted) {
    race_predicted(found);
  } else {
    race_measured(found, cells);
  }
  found.kinds_of_work = static_cast<int>(found.races.size());
  for (const WorkRace& race : found.races) {
    if (race.fastest < 0 || (found.kinds_of_work > 1 && race.groups.size() < 2)) continue;  // alone
    found.groups[static_cast<std::size_t>(race.fastest)].fastest = true;
    if (found.kinds_of_work == 1) found.fastest = race.fastest;
  }
  if (found.kinds_of_work != 1) return;
  found.verdict = found.races.front().verdict;
  found.by_cpu = found.races.front().by_cpu;
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

ReportGroups group_cells(const ReportRuns& runs) {
  ReportGroups found;
  const bool with_keys = axes_differ(runs.cells);
  put_together(found, runs, with_keys);
  tell_apart(found.groups, runs, with_keys);
  // As a sweep's own table has it.
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
