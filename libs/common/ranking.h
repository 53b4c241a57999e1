// Finds the fastest of several mixes by repeated measurements on a machine that may have had other
// things to do: with confidence intervals, and with "undecided" as an answer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/run_timing.h"
#include "common/statistics.h"

namespace mw {

struct RankedMix {
  std::vector<RunTiming> runs;  // only those that are done
  AxisValues values;            // of the axes, the seed's apart; mixes that have the same ones but
                                // for `recompute` differ in what they compute twice. May be empty
  double flops = 0;             // of a step, with what is computed twice; 0: not known
  // Whether it may be called the fastest. The spread of one that is wrong or not finished counts.
  bool right = true;
};

// Marks the runs of a mix that count for its speed: the runs that had the cores to themselves, or
// all runs if none had.
std::vector<bool> counted_runs(const std::vector<RunTiming>& runs);

// A 95 % confidence interval of the seconds of a step.
struct Interval {
  double low = CoreUse::unknown, middle = CoreUse::unknown, high = CoreUse::unknown;
  bool known() const { return low > 0; }
  // Half of its width, as a share of the middle. NaN where that is no less than 1: two runs may
  // give an interval of a thousand times the value, and such a number says nothing but that they
  // are too few.
  double half() const {
    const double share = (high - low) / 2 / middle;
    return share < 1 ? share : CoreUse::unknown;
  }
};

struct Ranking {
  std::vector<Interval> wall, cpu;  // of each mix
  std::vector<bool> disturbed;      // of each mix: no run of it had the cores to itself
  int fastest = -1;     // the mix that beats every other one; -1: undecided, or nothing to beat
  bool by_cpu = false;  // CPU seconds decided a comparison of the fastest mix
  // The mixes that no other one beats, the quickest first; where there is one and it does not beat
  // all, it and those that it does not beat; the two of an impossible pair, if its first would have
  // been the fastest.
  std::vector<int> among;
  // Pairs of mixes of which the first does more work than the second one in less time.
  std::vector<std::pair<int, int>> impossible;
  bool undecided() const { return fastest < 0 && !among.empty(); }
};

// Mixes without a run that is done take no part. All must do the same work for their batch.
Ranking rank_mixes(const std::vector<RankedMix>& mixes);

// Says in words which mix is the fastest, or which ones are not told apart, and which measurements
// cannot be. Empty: there is nothing to compare.
std::string verdict_text(const Ranking& ranking, const std::vector<std::string>& names);

// What the mixes `own` of a kind are called: the values that all of them have and no other mix.
// `mixes`: the values of each; null: it takes no part.
std::string name_of_kind(const std::vector<const AxisValues*>& mixes, const std::vector<int>& own);

}  // namespace mw
