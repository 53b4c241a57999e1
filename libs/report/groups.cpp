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

void take_spreads(ReportGroup& group, const std::vector<ReportCell>& cells) {
  const auto over = [&](const std::function<double(const ReportCell&)>& value, bool measured) {
    std::vector<double> values;
    for (const std::size_t c : group.cells)
      if (!measured || cells[c].done()) values.push_back(value(cells[c]));
    return mean_and_deviation(values);
  };
  using Cell = ReportCell;
  group.tokens_per_second = over([](const Cell& c) { return c.quiet_tokens(); }, true);
  group.step_seconds = over([](const Cell& c) { return c.quiet_step(); }, true);
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
    group.disturbed += cell.done() && cell.timing.disturbed ? 1 : 0;
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

using KindOfWork = std::vector<std::pair<std::string, std::string>>;

void find_edge(std::vector<ReportGroup>& groups, GroupVerdict counted) {
  std::vector<ReportGroup*> order;
  for (ReportGroup& g : groups) {
    if (g.verdict == counted && std::isfinite(g.speed()) && std::isfinite(g.memory_needed()))
      order.push_back(&g);
  }
  std::stable_sort(order.begin(), order.end(), [](const ReportGroup* a, const ReportGroup* b) {
    return std::pair(a->memory_needed(), -a->speed()) < std::pair(b->memory_needed(), -b->speed());
  });
  std::map<KindOfWork, double> best;
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

// Each kind of work has a fastest of its own; many are left to the table.
std::string headline_of_kinds(const ReportGroups& found) {
  std::string text = fmt::format(
      "No one fastest: there are {} kinds of work (model, sequence, batch or data differ), and "
      "tokens/s of one say nothing of another.",
      found.kinds_of_work);
  std::vector<std::string> names;
  for (const ReportGroup& g : found.groups)
    if (g.fastest) names.push_back(fmt::format("{}, {} tokens/s", g.name, grouped(g.speed())));
  if (names.empty() || names.size() > 4) return text;
  return text + (found.predicted ? " Predicted fastest of each: " : " The fastest of each: ") +
         join(names, "; ") + ".";
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
  text += fmt::format("{}, {} tokens/s", best.name, grouped(best.speed()));
  if (best.interval.known()) {
    text += fmt::format(" ± {} (95 %, of {})", grouped(best.speed() * best.half()),
                        plural(best.tokens_per_second.n, "run"));
  }
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

// Cells with the same values and settings become one group.
void put_together(ReportGroups& found, const ReportRuns& runs, bool with_keys) {
  std::map<std::string, std::size_t> by_key;
  std::map<std::string, std::string> settings;  // of a sweep's cells with the same values
  for (const ReportCell& cell : runs.cells)
    if (!cell.sweep.empty() && !cell.settings.empty())
      settings.emplace(cell.sweep + '\n' + joined_values(cell, true) + '\n', cell.settings);
  for (std::size_t c = 0; c < runs.cells.size(); ++c) {
    const ReportCell& cell = runs.cells[c];
    // The values of a sweep say what a cell is, also where it has not run.
    const std::string values = joined_values(cell, with_keys);
    const bool sweep = !cell.sweep.empty();
    const std::string base = cell.sweep + '\n' + joined_values(cell, true) + '\n';
    // A cell that failed before it ran belongs to its repeats.
    const auto known = settings.find(base);
    const std::string key =
        base + (cell.settings.empty() && known != settings.end() ? known->second : cell.settings);
    const auto [at, fresh] = by_key.emplace(key, found.groups.size());
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

int quickest_of(const ReportGroups& found, const std::vector<int>& race) {
  int best = -1;
  const auto speed = [&](int g) { return found.groups[static_cast<std::size_t>(g)].speed(); };
  for (const int g : race)
    if (best < 0 || speed(g) > speed(best)) best = g;
  return best;
}

// Runs are ranked by seconds of a token, which files of earlier versions have too.
RunTiming ranked_run(const ReportCell& cell) {
  RunTiming timing = cell.timing;
  timing.seconds = 1 / cell.quiet_tokens();
  return timing;
}

// Returns the group that beats all others of its work, or -1: then those that no other one beats
// are marked. `alone`: there is no other kind of work, so that the headline says why.
int first_of(ReportGroups& found, const std::vector<int>& race,
             const std::vector<ReportCell>& cells, bool alone) {
  std::vector<RankedMix> mixes;
  std::vector<std::string> names;
  for (const int g : race) {
    const ReportGroup& group = found.groups[static_cast<std::size_t>(g)];
    RankedMix& mix = mixes.emplace_back();
    names.push_back(group.name);
    for (const auto& [key, value] : group.values)
      if (key != "recompute") mix.same_but_recompute += key + "=" + value + "\n";
    for (const std::size_t c : group.cells) {
      if (!cells[c].done()) continue;
      mix.runs.push_back(ranked_run(cells[c]));
      mix.flops = cells[c].flops;
    }
  }
  const Ranking ranking = rank_mixes(mixes);
  for (std::size_t m = 0; m < mixes.size(); ++m)
    found.groups[static_cast<std::size_t>(race[m])].interval = ranking.wall[m];
  const auto group = [&](int mix) { return race[static_cast<std::size_t>(mix)]; };
  if (ranking.undecided()) {
    for (const int mix : ranking.among)
      found.groups[static_cast<std::size_t>(group(mix))].contends = true;
  }
  if (alone) {
    found.verdict = verdict_text(ranking, names);
    found.by_cpu = ranking.by_cpu;
  }
  return ranking.fastest < 0 ? -1 : group(ranking.fastest);
}

void find_fastest(ReportGroups& found, const std::vector<ReportCell>& cells) {
  const GroupVerdict counted = found.predicted ? GroupVerdict::predicted : GroupVerdict::right;
  find_edge(found.groups, counted);
  std::map<KindOfWork, std::vector<int>> kinds;
  for (std::size_t g = 0; g < found.groups.size(); ++g)
    if (std::isfinite(found.groups[g].speed()))
      kinds[found.groups[g].work].push_back(static_cast<int>(g));
  found.kinds_of_work = static_cast<int>(kinds.size());
  for (const auto& [work, members] : kinds) {
    std::vector<int> race;
    for (const int g : members) {
      if (found.groups[static_cast<std::size_t>(g)].verdict == counted) race.push_back(g);
    }
    const int best = found.predicted ? quickest_of(found, race)
                                     : first_of(found, race, cells, kinds.size() == 1);
    if (best < 0 || (kinds.size() > 1 && members.size() < 2)) continue;  // alone: no race
    found.groups[static_cast<std::size_t>(best)].fastest = true;
    if (kinds.size() == 1) found.fastest = best;
  }
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
