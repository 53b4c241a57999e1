// Adds up, over all ranks, how many tokens chose each expert and how many it took, and how
// uneven that is.
#include "app/experts.h"

#include <fmt/format.h>

#include <algorithm>

namespace mw {

void ExpertLoads::take(const std::vector<RankReport>& ranks) {
  layers_.clear();
  for (const RankReport& rank : ranks) {
    most_rows_share_ = std::max(most_rows_share_, rank.rows_share);
    for (const auto& [place, choices] : rank.chosen) {
      layers_[place.first][place.second].chosen = choices;
    }
    for (const auto& [place, rows] : rank.rows) layers_[place.first][place.second].taken += rows;
  }
}

std::pair<double, int> ExpertLoads::worst() const {
  std::pair<double, int> worst{1, -1};
  for (const auto& [layer, experts] : layers_) {
    double most = 0, all = 0;
    for (const auto& [expert, load] : experts) {
      most = std::max(most, static_cast<double>(load.chosen));
      all += static_cast<double>(load.chosen);
    }
    if (all == 0) continue;
    worst = std::max(worst, {most * static_cast<double>(experts.size()) / all, layer});
  }
  return worst;
}

double ExpertLoads::imbalance() const {
  return worst().first;
}

double ExpertLoads::dropped() const {
  std::int64_t chosen = 0, taken = 0;
  for (const auto& [layer, experts] : layers_) {
    for (const auto& [expert, load] : experts) {
      chosen += load.chosen;
      taken += load.taken;
    }
  }
  return chosen > 0 ? static_cast<double>(chosen - taken) / static_cast<double>(chosen) : 0;
}

Json ExpertLoads::to_json() const {
  Json json;
  json["imbalance"] = imbalance();
  json["dropped"] = dropped();
  json["layers"] = Json::array();
  for (const auto& [layer, experts] : layers_) {
    Json chosen = Json::array(), taken = Json::array();
    for (const auto& [expert, load] : experts) {
      chosen.push_back(load.chosen);
      taken.push_back(load.taken);
    }
    json["layers"].push_back({{"layer", layer}, {"chosen", chosen}, {"taken", taken}});
  }
  return json;
}

std::string ExpertLoads::text() const {
  const auto [most, layer] = worst();
  return fmt::format(
      "the fullest has {:.2f} times the mean (layer {}); {:.1f} % of choices dropped", most, layer,
      100 * dropped());
}

}  // namespace mw
