// Compares mixes by Student's t over the medians of their runs, whose spread is pooled over all
// mixes, and by CPU seconds where another program had the cores that a mix wants.
#include "common/ranking.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/statistics.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

// The relative difference between two runs of a mix, measured on two cores that did nothing else.
// It is half the width of the interval where each mix ran once.
constexpr double run_to_run = 0.03;
// Half the width of an interval of logarithms that is too wide to decide anything.
constexpr double tells_nothing = 10;
// The relative error of CPU seconds beside other programs, which take caches, memory and the other
// half of a core: docs/sweeps.md has the measurement.
constexpr double cpu_beside_others = 0.15;

// The quantile of Student's t for an interval of 95 %.
double student(int freedom) {
  static constexpr double small[] = {12.706, 4.303, 3.182, 2.776, 2.571};
  if (freedom <= 5) return small[std::max(freedom, 1) - 1];
  constexpr double z = 1.95996;
  const double n = freedom, z3 = z * z * z, z5 = z3 * z * z;
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n);
}

struct Sample {
  std::vector<double> logs;  // logarithm of each run's median step
  // The largest relative standard error of a run's median, by the run's own steps. NaN: no run has
  // enough steps.
  double within = CoreUse::unknown;
};

Sample sample_of(const RankedMix& mix, bool cpu) {
  const std::vector<bool> counted = counted_runs(mix.runs);
  Sample sample;
  for (std::size_t r = 0; r < mix.runs.size(); ++r) {
    const RunTiming& run = mix.runs[r];
    if (!counted[r] && !cpu) continue;
    const double value = cpu ? run.cpu : run.seconds, error = cpu ? run.cpu_error : run.error;
    if (!(value > 0)) continue;
    sample.logs.push_back(std::log(value));
    sample.within = std::fmax(sample.within, error);  // fmax() ignores a NaN
  }
  return sample;
}

// `least`: half of the narrowest interval's width, as a share.
std::vector<Interval> intervals_of(const std::vector<Sample>& samples, double least) {
  double squares = 0;
  int freedom = 0;
  std::vector<MeanAndDeviation> spreads;
  for (const Sample& sample : samples) {
    const MeanAndDeviation& spread = spreads.emplace_back(mean_and_deviation(sample.logs));
    if (spread.n < 2) continue;
    squares += spread.deviation * spread.deviation * (spread.n - 1);
    freedom += spread.n - 1;
  }
  const double pooled = freedom > 0 ? std::sqrt(squares / freedom) : 0;
  std::vector<Interval> intervals;
  for (std::size_t m = 0; m < samples.size(); ++m) {
    const auto& [middle, deviation, n] = spreads[m];
    Interval& made = intervals.emplace_back();
    if (n == 0) continue;
    const double within = student(4) * samples[m].within / std::sqrt(n);
    // A mix that varies more than others is given its own spread. A single run of a few steps shows
    // no spread.
    const double once = std::isnan(within) ? tells_nothing : run_to_run;
    const double half =
        freedom > 0 ? student(freedom) * std::max(pooled, n > 1 ? deviation : 0) / std::sqrt(n)
                    : once;
    const double wide = std::fmax(std::max(half, least), within);
    made = {std::exp(middle - wide), std::exp(middle), std::exp(middle + wide)};
  }
  return intervals;
}

// Whether mix `a` is certainly faster than mix `b`. CPU seconds decide where one of the two did not
// have the cores to itself, and then the wall seconds must not contradict.
bool beats(const Ranking& r, std::size_t a, std::size_t b) {
  const bool by_cpu = r.disturbed[a] || r.disturbed[b];
  const std::vector<Interval>& by = by_cpu ? r.cpu : r.wall;
  if (!by[a].known() || !by[b].known() || by[a].high >= by[b].low) return false;
  return !by_cpu || r.wall[a].middle < r.wall[b].middle;
}

// The mix's values as text, but for `recompute`. Empty: no values are known.
std::string same_but_recompute(const RankedMix& mix) {
  std::string text;
  for (const auto& [key, value] : mix.values)
    if (key != "recompute") text += key + "=" + value + "\n";
  return text;
}

void find_fastest(Ranking& r, const std::vector<RankedMix>& mixes) {
  const std::size_t count = r.wall.size();
  const auto races = [&](std::size_t m) { return mixes[m].right && r.wall[m].known(); };
  std::size_t racing = 0;
  for (std::size_t m = 0; m < count; ++m) racing += races(m) ? 1 : 0;
  if (racing < 2) return;  // a single mix has no rival
  for (std::size_t a = 0; a < count; ++a) {
    if (!races(a)) continue;
    bool beaten = false, beats_all = true, cpu = false;
    for (std::size_t b = 0; b < count; ++b) {
      if (a == b || !races(b)) continue;
      beaten = beaten || beats(r, b, a);
      beats_all = beats_all && beats(r, a, b);
      cpu = cpu || r.disturbed[a] || r.disturbed[b];
    }
    if (beats_all) {
      r.fastest = static_cast<int>(a);
      r.by_cpu = cpu;
    }
    if (!beaten) r.among.push_back(static_cast<int>(a));
  }
  // Where CPU seconds decide some pairs, the only unbeaten mix may not beat all others itself.
  const std::size_t only = r.among.size() == 1 ? static_cast<std::size_t>(r.among[0]) : count;
  for (std::size_t b = 0; b < count && only < count && r.fastest < 0; ++b)
    if (b != only && races(b) && !beats(r, only, b)) r.among.push_back(static_cast<int>(b));
  std::stable_sort(r.among.begin(), r.among.end(), [&](int a, int b) {
    return r.wall[static_cast<std::size_t>(a)].middle < r.wall[static_cast<std::size_t>(b)].middle;
  });
}

}  // namespace

std::string name_of_kind(const std::vector<const AxisValues*>& mixes, const std::vector<int>& own) {
  std::vector<std::string> texts;
  for (const auto& value : *mixes[static_cast<std::size_t>(own.front())]) {
    bool tells = true;
    for (std::size_t m = 0; m < mixes.size() && tells; ++m) {
      if (mixes[m] == nullptr) continue;
      const bool has = std::find(mixes[m]->begin(), mixes[m]->end(), value) != mixes[m]->end();
      tells = has == (std::find(own.begin(), own.end(), static_cast<int>(m)) != own.end());
    }
    if (tells) texts.push_back(value.second);
  }
  return join(texts);
}

std::vector<bool> counted_runs(const std::vector<RunTiming>& runs) {
  const bool some =
      std::any_of(runs.begin(), runs.end(), [](const RunTiming& run) { return !run.disturbed; });
  std::vector<bool> counted;
  for (const RunTiming& run : runs) counted.push_back(!run.disturbed || !some);
  return counted;
}

Ranking rank_mixes(const std::vector<RankedMix>& mixes) {
  Ranking r;
  std::vector<Sample> wall, cpu;
  for (const RankedMix& mix : mixes) {
    r.disturbed.push_back(!mix.runs.empty() &&
                          std::all_of(mix.runs.begin(), mix.runs.end(),
                                      [](const RunTiming& run) { return run.disturbed; }));
    wall.push_back(sample_of(mix, false));
    cpu.push_back(sample_of(mix, true));
  }
  r.wall = intervals_of(wall, 0);
  r.cpu = intervals_of(cpu, cpu_beside_others);
  find_fastest(r, mixes);
  std::vector<std::string> values;
  for (const RankedMix& mix : mixes) values.push_back(same_but_recompute(mix));
  for (std::size_t a = 0; a < mixes.size(); ++a) {
    for (std::size_t b = 0; b < mixes.size(); ++b) {
      const bool alike =
          mixes[a].right && mixes[b].right && !values[a].empty() && values[a] == values[b];
      if (alike && mixes[a].flops > 1.01 * mixes[b].flops && beats(r, a, b))
        r.impossible.emplace_back(static_cast<int>(a), static_cast<int>(b));
    }
  }
  // A fastest mix that rests on an impossible measurement is not certain.
  for (const auto& [more, less] : r.impossible) {
    if (r.fastest != more) continue;
    r.among = {more, less};
    r.fastest = -1;
  }
  return r;
}

std::string verdict_text(const Ranking& r, const std::vector<std::string>& names) {
  const auto name = [&](int mix) { return names[static_cast<std::size_t>(mix)]; };
  std::string text;
  if (r.fastest >= 0 && r.among.size() == 1) {
    text = fmt::format("fastest: {}, as the 95 % intervals of {} seconds say", name(r.fastest),
                       r.by_cpu ? "CPU (other programs had the cores)" : "wall");
  } else if (r.undecided() && r.among.size() > 1) {
    std::vector<std::string> list;
    for (const int mix : r.among) list.push_back(name(mix));
    const std::size_t all = list.size();
    if (all > 5) list.resize(5);
    text = fmt::format(
        "undecided: {}{} are not told apart by their 95 % intervals; more seeds, more steps or a "
        "machine that does nothing else tell",
        join(list), all > 5 ? fmt::format(" and {} more", all - 5) : "");
  }
  for (const auto& [more, less] : r.impossible) {
    text += fmt::format(
        "{}cannot be: {} does more work than {} in less time; one of the two was disturbed: run "
        "both again (--retry all)",
        text.empty() ? "" : "\n", name(more), name(less));
  }
  return text;
}

}  // namespace mw
