// What tokens chose and what experts got, of a step: for the run file, the results and the summary.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "meshwright/json.h"
#include "run/trainer.h"

namespace mw {

struct ExpertCount {
  std::int64_t chosen = 0;  // choices of tokens that fell on it
  std::int64_t taken = 0;   // ... that it worked on: fewer where capacity is limited
};

class ExpertLoads {
 public:
  void take(const std::vector<RankReport>& ranks);
  bool empty() const { return layers_.empty(); }
  const std::map<int, std::map<std::int64_t, ExpertCount>>& layers() const { return layers_; }
  double imbalance()
      const;               // of choices, the most over the mean; of the layer where that is highest
  double dropped() const;  // share of choices
  Json to_json() const;
  std::string text() const;  // "imbalance 1.31 (layer 2), 0.4 % dropped"

 private:
  std::map<int, std::map<std::int64_t, ExpertCount>> layers_;
  std::pair<double, int> worst() const;
};

}  // namespace mw
