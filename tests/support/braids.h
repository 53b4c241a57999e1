// Mixes whose schedules join works, with weaves of ours and of a user's.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "support/mixes.h"

namespace mw::test {

// Schedules with groups, on two stages: with one chunk each, or two.
struct Paired {
  std::string name;
  std::vector<int> layers;  // of each virtual stage
};
inline const std::vector<Paired>& paired_schedules() {
  static const std::vector<Paired> all = {{"1f1b", {2, 2}},
                                          {"zb-h1", {2, 2}},
                                          {"zb-h2", {2, 2}},
                                          {"dualpipev", {1, 1, 1, 1}},
                                          {"interleaved", {1, 1, 1, 1}},
                                          {"zbv", {1, 1, 1, 1}}};
  return all;
}

// What mw.weave makes of a script's function that takes one instruction of each lane in turn.
inline Json in_turn(const Json& request) {
  Json order = Json::array();
  std::size_t longest = 0;
  for (const Json& lane : request.at("lanes")) longest = std::max(longest, lane.at("code").size());
  for (std::size_t n = 0; n < longest; ++n) {
    for (std::size_t lane = 0; lane < request.at("lanes").size(); ++lane)
      if (n < request.at("lanes")[lane].at("code").size()) order.push_back(lane + 1);
  }
  return order;
}

// Two stages; `users`: with the weave above instead of the default.
inline StrategyChoice pairs(const Paired& schedule, bool users) {
  Json options = mixes::options_of_pairs(schedule.name, schedule.layers);
  if (!users) return strategy("pp", std::move(options));
  options["weave"] = {{"kind", "weave"}, {"name", "in turn"}, {"order", {{function_key, 1}}}};
  return strategy("pp", std::move(options), [](std::int64_t, const std::vector<Json>& request) {
    return in_turn(request.at(0));
  });
}

// Beside a pipeline of pairs: what lanes share, and what they exchange.
inline std::vector<NamedMix> beside_pairs() {
  using namespace mixes;  // NOLINT: short names
  const StrategyChoice gathered = strategy("ep", {{"ways", 2}, {"dispatch", "allgather"}});
  std::vector<NamedMix> all = {mix("dp", {dp(2, 1 << 12)}, 1),
                               mix("zero 1", {zero(2, 1)}, 1),
                               mix("zero 2", {zero(2, 2)}, 1),
                               mix("zero 3", {zero(2, 3)}, 1),
                               experts(mix("ep", {dp(2), ep(2)}, 1)),
                               experts(mix("ep, gathered", {dp(2), gathered}, 1)),
                               mix("tp with sp", {tp(2), sp()}, 1),
                               mix("ring", {sp(2, "ring")}, 1),
                               mix("zero 3, nothing ahead", {zero(2, 3, 1, 0)}, 1),
                               mix("zero 3 with replicas", {zero(4, 3, 2)}, 1),
                               mix("zero 3, kept", {zero(2, 3, 1, 1, true)}, 1),
                               mix("zero 2 by chunk", {zero_by_chunk(2, 2)}, 1),
                               mix("zero 3, parameters in host memory",
                                   {zero(2, 3, 1, 1, false, 1 << 12, "parameters")}, 1)};
  for (NamedMix& each : all) {
    each.setup.options["layers"] = 4;
    each.setup.batch =
        each.setup.plan.front().name == "tp" || each.setup.plan.front().name == "sp" ? 5 : 10;
    if (each.name == "zero 3 with replicas") each.setup.batch = 20;
  }
  return all;
}

inline NamedMix paired_mix(int schedule, int beside, bool users, bool recompute) {
  const Paired& order = paired_schedules()[static_cast<std::size_t>(schedule)];
  NamedMix made = beside_pairs()[static_cast<std::size_t>(beside)];
  made.name =
      order.name + ", " + made.name + (users ? ", in turn" : "") + (recompute ? ", recompute" : "");
  made.setup.plan.insert(made.setup.plan.begin(), pairs(order, users));
  if (recompute) made.setup.recompute.kind = RecomputePolicy::Kind::full;
  return made;
}

}  // namespace mw::test
