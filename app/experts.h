// What tokens chose and what experts got, of a step: for the run file, the results and the summary.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "meshwright/engine/run.h"
#include "meshwright/json.h"

namespace mw {

struct ExpertCount {
  std::int64_t chosen = 0;  // choices of tokens that fell on it
  std::int64_t taken = 0;   // those that it worked on: fewer where capacity is limited
};

class ExpertLoads {
 public:
  void take(const std::vector<RankReport>& ranks);
  bool empty() const { return layers_.empty(); }
  const std::map<int, std::map<std::int64_t, ExpertCount>>& layers() const { return layers_; }
  // The most choices of an expert over the mean, in the layer where that is highest.
  double imbalance() const;
  double dropped() const;  // share of choices
  // Rows of the fullest rank in any step over those that the program supposes; 0: no rows.
  double most_rows_share() const { return most_rows_share_; }
  Json to_json() const;
  std::string text() const;  // "imbalance 1.31 (layer 2), 0.4 % dropped"

 private:
  std::map<int, std::map<std::int64_t, ExpertCount>> layers_;
  double most_rows_share_ = 0;
  std::pair<double, int> worst() const;
};

}  // namespace mw
