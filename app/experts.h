// How many tokens of a step chose each expert, and how many it took: for the run file, the results
// and the summary.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "meshwright/engine/run.h"
#include "meshwright/json.h"

namespace mw {

struct ExpertCount {
  std::int64_t chosen = 0;  // choices of tokens that fell on the expert
  std::int64_t taken = 0;   // choices that the expert worked on: fewer where capacity is limited
};

class ExpertLoads {
 public:
  void take(const std::vector<RankReport>& ranks);
  bool empty() const { return layers_.empty(); }
  const std::map<int, std::map<std::int64_t, ExpertCount>>& layers() const { return layers_; }
  // The choices of the most chosen expert divided by the mean, in the layer where that is highest.
  double imbalance() const;
  double dropped() const;  // share of choices that no expert worked on
  // The rows of the fullest rank in any step so far, divided by those that the program assumes; 0:
  // no rows.
  double most_rows_share() const { return most_rows_share_; }
  Json to_json() const;
  // "the fullest has 1.31 times the mean (layer 2); 0.4 % of choices dropped"
  std::string text() const;

 private:
  std::map<int, std::map<std::int64_t, ExpertCount>> layers_;
  double most_rows_share_ = 0;
  std::pair<double, int> worst() const;
};

}  // namespace mw
