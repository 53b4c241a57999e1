// Finds the fastest of several mixes by repeated measurements on a machine that may have had other
// things to do: with confidence intervals, and with "undecided" as an answer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/run_timing.h"

namespace mw {

struct RankedMix {
  std::vector<RunTiming> runs;  // only those that are done
  // All values of the mix but `recompute`: mixes with the same text differ only in what they
  // compute twice. Empty: the values are not known.
  std::string same_but_recompute;
  double flops = 0;  // of a step, with what is computed twice; 0: not known
};

// A 95 % confidence interval of the seconds of a step.
struct Interval {
  double low = CoreUse::unknown, middle = CoreUse::unknown, high = CoreUse::unknown;
  bool known() const { return low > 0; }
  double half() const { return (high - low) / 2; }
};

struct Ranking {
  std::vector<Interval> wall, cpu;  // of each mix
  std::vector<bool> disturbed;      // of each mix: no run of it had the cores to itself
  int fastest = -1;                 // the mix that beats every other one; -1: undecided
  bool by_cpu = false;              // CPU seconds decided a comparison of the fastest mix
  // The mixes that no other one beats, the quickest first; the two of an impossible pair, if its
  // first would have been the fastest.
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

}  // namespace mw
