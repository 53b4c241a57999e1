// Finds the fastest of several mixes by repeated measurements on a machine that may have been busy
// with other things: with confidence intervals, and with "undecided" as an answer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/run_timing.h"
#include "common/statistics.h"

namespace mw {

struct RankedMix {
  std::vector<RunTiming> runs;  // the mix's finished runs
  // The mix's values of the sweep's axes, but for the seed. Mixes that differ in `recompute` alone
  // differ in what they compute twice. May be empty.
  AxisValues values;
  double flops = 0;  // flops of a step, recomputation included; 0: not known
  // Whether the mix may be called the fastest. The spread of a mix that is wrong or not finished
  // counts all the same.
  bool right = true;
};

// Marks the runs of a mix that count for its speed: the runs that had the cores to themselves, or
// all runs if none had.
std::vector<bool> counted_runs(const std::vector<RunTiming>& runs);

// A 95 % confidence interval of the seconds of a step.
struct Interval {
  double low = CoreUse::unknown, middle = CoreUse::unknown, high = CoreUse::unknown;
  bool known() const { return low > 0; }
  // Half of the interval's width, as a share of its middle. NaN where that is 1 or more: two runs
  // may give an interval of a thousand times the value, which says nothing but that they are too
  // few.
  double half() const {
    const double share = (high - low) / 2 / middle;
    return share < 1 ? share : CoreUse::unknown;
  }
};

struct Ranking {
  std::vector<Interval> wall, cpu;  // each mix's wall and CPU seconds
  std::vector<bool> disturbed;      // for each mix: none of its runs had the cores to itself
  int fastest = -1;     // the mix that beats every other one; -1: undecided, or nothing to beat
  bool by_cpu = false;  // CPU seconds decided a comparison of the fastest mix
  // Candidates for the fastest mix, the quickest first: the mixes that no other beats. If that is
  // one, and it does not beat all others, also those that it does not beat. If it is the first of
  // an impossible pair, the two of that pair.
  std::vector<int> among;
  // Pairs of mixes of which the first does more work than the second one in less time.
  std::vector<std::pair<int, int>> impossible;
  bool undecided() const { return fastest < 0 && !among.empty(); }
};

// Ranks the mixes; those without a finished run take no part. All must do the same work for their
// batch.
Ranking rank_mixes(const std::vector<RankedMix>& mixes);

// Says in words which mix is the fastest, or which ones are not told apart, and which measurements
// cannot be. Empty: there is nothing to compare.
std::string verdict_text(const Ranking& ranking, const std::vector<std::string>& names);

// A name for the mixes `own` (indices of `mixes`): the values that all of them have and no other
// mix has. A mix that takes no part is null.
std::string name_of_kind(const std::vector<const AxisValues*>& mixes, const std::vector<int>& own);

}  // namespace mw
